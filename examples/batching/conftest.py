"""Tests write rows and run jobs on one connection, in a transaction that is rolled back."""

import os
from collections.abc import Iterator

import psycopg
import pytest
from graphile_worker import App

from tasks import app


@pytest.fixture
def gw_app() -> App[None]:
    return app


@pytest.fixture
def conn() -> Iterator[psycopg.Connection]:
    with psycopg.connect(os.environ["DATABASE_URL"]) as conn:
        # Restore the state after schema.sql; rolled back with the rest.
        conn.execute("delete from readings")
        conn.execute("delete from sensors where name = 'attic'")
        yield conn
        conn.rollback()


@pytest.fixture
def gw_connection(conn: psycopg.Connection) -> object:
    return conn
