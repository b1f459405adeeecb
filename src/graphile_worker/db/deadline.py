"""Do not wait for a server that may have vanished."""

import asyncio
from typing import Any

from psycopg import AsyncConnection, waiting
from psycopg.abc import RV, PQGen
from psycopg.rows import Row

# Seconds between two looks at whether the program was interrupted, as psycopg has it.
INTERVAL = 0.1


class ImpatientConnection(AsyncConnection[Row]):
    """Whoever gives up a statement on it gives up the connection, at once.

    psycopg would first ask the server to stop, and wait up to ten seconds for its word.
    """

    async def wait(self, gen: PQGen[RV], *args: Any, **more: Any) -> RV:
        if not args:
            more.setdefault("interval", INTERVAL)
        try:
            return await waiting.wait_async(gen, self.pgconn.socket, *args, **more)
        except asyncio.CancelledError:
            self.pgconn.finish()
            raise
