"""Take jobs for one pool, and know which ones it holds."""

import inspect
import time
from collections.abc import Awaitable, Callable, Collection

from graphile_worker.clock import Clock
from graphile_worker.db.database import Answering
from graphile_worker.errors import ConfigurationError
from graphile_worker.sql.holding import (
    HeldJob,
    get_jobs,
    get_task_ids,
    register_tasks,
    return_unheld_jobs,
)

Flags = Collection[str] | None
ForbiddenFlags = Flags | Callable[[], Flags | Awaitable[Flags]]

# The row of a task may be deleted and made anew, under another id, while we run.
LOOK_AT_TASKS_EVERY = 10.0

# Seconds for which a fetch that we gave up may still be carried out by its server.
DOUBT_LASTS = 60.0


class Claims:
    """One fetch at a time: `take` must not be called again before it has answered."""

    def __init__(
        self,
        database: Answering,
        pool_id: str,
        identifiers: Collection[str],
        *,
        forbidden_flags: ForbiddenFlags = None,
        clock: Clock | None = None,
    ) -> None:
        self.pool_id = pool_id
        self.held: dict[int, HeldJob] = {}
        self._db = database
        self._identifiers = list(identifiers)
        self._forbidden_flags = forbidden_flags
        self._clock = clock
        self._task_ids: dict[int, str] = {}
        self._looked_at = 0.0
        self._in_doubt = False
        self._doubt_until = 0.0
        self._settled_at = 0.0

    async def take(self, limit: int) -> list[HeldJob]:
        """Up to so many jobs that are ready, locked for this pool."""
        if not self._identifiers:
            return []
        await self.settle_doubts()
        await self._look_at_tasks()
        flags = await self._flags_to_skip()
        now = None if self._clock is None else self._clock.now()
        # Whatever ends this but an answer may come after the database has committed.
        self._in_doubt = True
        taken = await self._db.run(
            get_jobs(self.pool_id, self._task_ids, skip_flags=flags, limit=limit, now=now)
        )
        self._in_doubt = False
        # One that somebody unlocked while it runs here: that run goes on, with a new lock.
        new = [each for each in taken if each.job.id not in self.held]
        self.held.update((each.job.id, each) for each in new)
        return new

    def let_go(self, held: HeldJob) -> None:
        """That job is settled, or was handed back."""
        self.held.pop(held.job.id, None)

    def forget_all_but(self, job_ids: Collection[int]) -> None:
        """At the end: nobody runs the others, so they can be handed back."""
        unknown = self.held.keys() - set(job_ids)
        self._in_doubt = self._in_doubt or bool(unknown)
        for job_id in unknown:
            del self.held[job_id]

    async def settle_doubts(self, *, at_once: bool = False) -> None:
        """Hand back what a fetch may have locked whose answer never came."""
        if self._in_doubt:
            self._in_doubt = False
            self._doubt_until = time.monotonic() + DOUBT_LASTS
            self._settled_at = 0.0
        now = time.monotonic()
        recently = now - self._settled_at < LOOK_AT_TASKS_EVERY
        if now > self._doubt_until or (recently and not at_once):
            return
        self._settled_at = now
        queues = [each.queue_id for each in self.held.values() if each.queue_id is not None]
        await self._db.run(return_unheld_jobs(self.pool_id, list(self.held), queues))

    async def _look_at_tasks(self) -> None:
        now = time.monotonic()
        if self._task_ids and now - self._looked_at < LOOK_AT_TASKS_EVERY:
            return
        found = await self._db.run(get_task_ids(self._identifiers))
        if len(found) < len(self._identifiers):
            await self._db.run(register_tasks(self._identifiers))
            found = await self._db.run(get_task_ids(self._identifiers))
        self._task_ids = found
        self._looked_at = now

    async def _flags_to_skip(self) -> list[str] | None:
        flags = self._forbidden_flags
        if callable(flags):
            answer = flags()
            flags = await answer if inspect.isawaitable(answer) else answer
        return _checked(flags)


def _checked(flags: object) -> list[str] | None:
    if flags is None:
        return None
    if isinstance(flags, str) or not isinstance(flags, Collection):
        raise ConfigurationError(f"forbidden_flags must be a list or set of text, got {flags!r}")
    return list(flags) or None
