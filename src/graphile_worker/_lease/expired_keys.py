"""ExpiredKeys: deletes the unique keys whose windows have ended."""

import time
from collections.abc import Callable

from graphile_worker._db.database import QueryRunner
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.unique_keys import check_unique_keys, delete_expired_keys
from graphile_worker._support.error_format import format_error_line
from graphile_worker._support.logs import Logger

KEYS_PER_STATEMENT = 1000

# Longest round, which deletes millions of keys. The next one continues.
MAX_ROUND_SECONDS = 60.0


class ExpiredKeys:
    """Deletes expired keys in small statements, which skip keys that another session uses."""

    def __init__(
        self,
        database: QueryRunner,
        schemas: Schemas,
        logger: Logger,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._db = database
        self._schemas = schemas
        self._logger = logger
        self._is_usable = False

    async def delete_once(self) -> int:
        """Delete expired keys, and return their number. Errors are logged, for the next round."""
        try:
            if not self._is_usable:
                # Not in an older companion schema, and a role may lack privileges.
                access = await self._db.run(check_unique_keys(self._schemas))
                self._is_usable = access.is_usable
            return await self._delete() if self._is_usable else 0
        except Exception as error:
            self._is_usable = False
            self._logger.debug(
                "deleting expired unique keys failed, retrying: %s", format_error_line(error)
            )
            return 0

    async def _delete(self) -> int:
        total = 0
        ends_at = self._clock() + MAX_ROUND_SECONDS
        while True:
            count = await self._db.run(delete_expired_keys(KEYS_PER_STATEMENT))
            total += count
            if count < KEYS_PER_STATEMENT or self._clock() >= ends_at:
                return total
