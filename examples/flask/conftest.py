"""Views, tasks and tests share one connection, which never commits."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from flask.testing import FlaskClient
from graphile_worker import App

from shop import database
from shop.tasks import app
from shop.web import web

SCHEMA = (Path(__file__).parent / "schema.sql").read_bytes()


@pytest.fixture
def gw_app() -> App[None]:
    return app


@pytest.fixture
def conn() -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(os.environ["DATABASE_URL"]) as conn:
        conn.execute(SCHEMA)
        # Restock, for a database that was used before.
        conn.execute("update products set stock = 2")
        yield conn
        conn.rollback()


@pytest.fixture
def gw_connection(conn: psycopg.Connection[Any]) -> object:
    return conn


class OnePool:
    """Replaces the pool: returns the test's connection, in a savepoint for each request."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self._conn = conn

    def open(self) -> None: ...

    @contextmanager
    def connection(self) -> Iterator[psycopg.Connection[Any]]:
        with self._conn.transaction():
            yield self._conn


@pytest.fixture
def shop(conn: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch) -> FlaskClient:
    monkeypatch.setattr(database, "pool", OnePool(conn))
    return web.test_client()
