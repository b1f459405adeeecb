"""One engine for blocking code and one for async code, both over psycopg."""

import os

from sqlalchemy import create_engine, make_url
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

url = make_url(os.environ["DATABASE_URL"]).set(drivername="postgresql+psycopg")

engine = create_engine(url)
new_session = sessionmaker(engine)

async_engine = create_async_engine(url)
new_async_session = async_sessionmaker(async_engine, expire_on_commit=False)
