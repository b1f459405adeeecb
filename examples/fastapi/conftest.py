"""Routes, tasks and tests share one connection, which never commits."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from graphile_worker import App, Client

from shop.tasks import app
from shop.web import in_transaction, queue_client, web

SCHEMA = (Path(__file__).parent / "schema.sql").read_bytes()


@pytest.fixture
def gw_app() -> App[None]:
    return app


@pytest.fixture
async def conn() -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    async with await psycopg.AsyncConnection.connect(os.environ["DATABASE_URL"]) as conn:
        await conn.execute(SCHEMA)
        # Restock, for a database that was used before.
        await conn.execute("update products set stock = 2")
        yield conn
        await conn.rollback()


@pytest.fixture
def gw_connection(conn: psycopg.AsyncConnection[Any]) -> object:
    return conn


@pytest.fixture
async def shop(conn: psycopg.AsyncConnection[Any]) -> AsyncIterator[httpx.AsyncClient]:
    async def in_savepoint() -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        async with conn.transaction():
            yield conn

    web.dependency_overrides = {in_transaction: in_savepoint, queue_client: lambda: Client()}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(web), base_url="http://shop"
    ) as http:
        yield http
    web.dependency_overrides = {}
