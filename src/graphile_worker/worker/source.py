"""Where a worker's next job comes from."""

from typing import Protocol

from graphile_worker.db.database import Database
from graphile_worker.sql.holding import HeldJob, get_jobs, get_task_ids, register_tasks


class JobSource(Protocol):
    """Gives jobs that this pool has locked, one at a time."""

    async def next(self) -> HeldJob | None: ...


class DirectSource:
    """One query per job."""

    def __init__(self, database: Database, pool_id: str, identifiers: list[str]) -> None:
        self._db = database
        self._pool_id = pool_id
        self._identifiers = identifiers
        self._task_ids: dict[int, str] = {}

    async def next(self) -> HeldJob | None:
        if not self._task_ids:
            await self._db.run(register_tasks(self._identifiers))
            self._task_ids = await self._db.run(get_task_ids(self._identifiers))
        taken = await self._db.run(get_jobs(self._pool_id, self._task_ids))
        return taken[0] if taken else None
