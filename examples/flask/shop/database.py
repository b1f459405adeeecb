"""The connection pool of the web server, and the transaction of a request."""

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from psycopg import Connection
from psycopg_pool import ConnectionPool

from shop.tasks import app

# Opened by the first request. A server that imports this module and then forks would share the
# sockets of an open pool between its processes, without the pool's threads.
pool = ConnectionPool(os.environ.get("DATABASE_URL", ""), open=False)
atexit.register(pool.close)


@contextmanager
def transaction() -> Iterator[Connection[Any]]:
    """A connection for one transaction, which jobs enqueued inside join."""
    pool.open()  # in the process that serves the request; does nothing if the pool is open
    with pool.connection() as conn, app.using_connection(conn):
        yield conn
