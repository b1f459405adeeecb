"""The pool of the web server: one transaction for each request that wants one."""

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from psycopg import Connection
from psycopg_pool import ConnectionPool

from shop.tasks import app

# Not open yet: a server that imports this module first and forks afterwards would hand the same
# sockets to all its processes, and none of the pool's threads.
pool = ConnectionPool(os.environ.get("DATABASE_URL", ""), open=False)
atexit.register(pool.close)


@contextmanager
def transaction() -> Iterator[Connection[Any]]:
    """A connection; what is done on it, and each job added inside, is committed or rolled back."""
    pool.open()  # in the process that serves the request; nothing if it is open
    with pool.connection() as conn, app.using_connection(conn):
        yield conn
