"""Do not wait for ever for a server that may have vanished."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from psycopg import AsyncConnection


@asynccontextmanager
async def cut_after(connection: AsyncConnection[Any], seconds: float) -> AsyncIterator[None]:
    """Give up a connection that has not answered by then; raises TimeoutError.

    Cut, not closed: psycopg would first ask the server to stop, and wait for its word.
    """
    async with asyncio.timeout(seconds) as limit:
        moment = limit.when()
        assert moment is not None
        cut = asyncio.get_running_loop().call_at(moment, connection.pgconn.finish)
        try:
            yield
        finally:
            cut.cancel()
