"""Do not wait for a server that may have vanished."""

import asyncio
from contextlib import suppress
from typing import Any

from psycopg import AsyncConnection, Error, capabilities, generators, waiting
from psycopg.abc import RV, PQGen
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGcancelConn
from psycopg.rows import Row

# Seconds between two looks at whether the program was interrupted, as psycopg has it.
INTERVAL = 0.1

# Seconds to reach a server that is asked to stop.
PATIENCE = 2.0

# Those that are under way: a loop alone does not keep its tasks.
_asking: set[asyncio.Task[None]] = set()


class ImpatientConnection(AsyncConnection[Row]):
    """Whoever gives up a statement on it gives up the connection, at once.

    psycopg would first ask the server to stop, and wait up to ten seconds for its word. Here nobody
    waits for that: but asked it must be, for a server does not look at its clients while it waits
    for a lock, and would keep a session for each statement that was given up.
    """

    async def wait(self, gen: PQGen[RV], *args: Any, **more: Any) -> RV:
        if not args:
            more.setdefault("interval", INTERVAL)
        try:
            return await waiting.wait_async(gen, self.pgconn.socket, *args, **more)
        except asyncio.CancelledError:
            self._ask_to_stop()
            self.pgconn.finish()
            raise

    def _ask_to_stop(self) -> None:
        if self.pgconn.transaction_status != TransactionStatus.ACTIVE:
            return
        # Needs a libpq that can do so without standing still.
        if capabilities.has_cancel_safe():
            task = asyncio.get_running_loop().create_task(_ask(self.pgconn.cancel_conn()))
            _asking.add(task)
            task.add_done_callback(_asking.discard)


async def _ask(server: PGcancelConn) -> None:
    try:
        with suppress(Error, OSError, TimeoutError):
            async with asyncio.timeout(PATIENCE):
                server.start()
                await waiting.wait_conn_async(generators.cancel(server), interval=INTERVAL)
    finally:
        server.finish()
