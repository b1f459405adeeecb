"""PauseMonitor: reads which tasks are paused, and ends the expired pauses of named queues."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from enum import Enum, auto

from graphile_worker._db.database import QueryRunner
from graphile_worker._lease.lease import Lease
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.pauses import (
    PauseAccess,
    PausedTasks,
    PauseKind,
    check_pauses,
    get_paused_tasks,
    resume_expired_queues,
)
from graphile_worker._sql.sqlstate import INSUFFICIENT_PRIVILEGE, MISSING_OBJECT, get_sqlstate
from graphile_worker._support.error_format import format_error_line, make_printable
from graphile_worker._support.lazy_dataclass import LazyKeywordDataclass
from graphile_worker._support.logs import Logger
from graphile_worker.events import PausesChanged
from graphile_worker.hooks import Hooks

NO_ACCESS = PauseAccess(exists=False, can_read=False, can_write=False)
NOTHING_PAUSED = PausedTasks([], None, has_expired=False)


class PauseCause(Enum):
    """Why a pool neither claims nor starts jobs of a task."""

    RUNAWAYS = auto()
    PERSON = auto()


class PausedTaskNames:
    """The tasks whose jobs a pool neither claims nor starts. Several causes can pause one task."""

    def __init__(self) -> None:
        # Changed in place: the claimer and the start guard read it for each fetch and each job.
        self.names: set[str] = set()
        self._by_cause: dict[PauseCause, frozenset[str]] = {}

    def get(self, cause: PauseCause) -> frozenset[str]:
        return self._by_cause.get(cause, frozenset())

    def set(self, cause: PauseCause, names: Collection[str]) -> None:
        """Replace the tasks that are paused for this cause."""
        self._by_cause[cause] = frozenset(names)
        paused = frozenset[str]().union(*self._by_cause.values())
        self.names.intersection_update(paused)
        self.names.update(paused)


class PauseTimings(LazyKeywordDataclass):
    """Intervals of a pause monitor."""

    read_interval_seconds: float = 5.0
    """Between two reads without a notification: a pause takes effect within 6 s."""
    min_read_interval_seconds: float = 0.2
    """Between two reads, because any role can send the notification."""


DEFAULT_TIMINGS = PauseTimings()


class PauseMonitor:
    """Reads the pauses at intervals, after a notification, and when the next one ends.

    Without the table, or a privilege on it, nothing is paused. During a database outage, what was
    paused stays paused.
    """

    def __init__(
        self,
        database: QueryRunner,
        schemas: Schemas,
        lease: Lease,
        hooks: Hooks,
        logger: Logger,
        *,
        tasks: Collection[str],
        paused: PausedTaskNames,
        on_paused: Callable[[Collection[str]], Awaitable[None]],
        on_resumed: Callable[[], None],
        timings: PauseTimings = DEFAULT_TIMINGS,
    ) -> None:
        self._db = database
        self._schemas = schemas
        self._lease = lease
        self._hooks = hooks
        self._logger = logger
        self._tasks = frozenset(tasks)
        self._paused = paused
        self._on_paused = on_paused
        self._on_resumed = on_resumed
        self._timings = timings
        self._access = NO_ACCESS
        self._has_warned = False
        self._notified = asyncio.Event()

    def wake(self) -> None:
        """Read soon, because a pause has changed."""
        self._notified.set()

    async def run(self) -> None:
        """Read until cancelled. The first read is that of the start."""
        wait_seconds = self._timings.read_interval_seconds
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_seconds):
                    await self._notified.wait()
            self._notified.clear()
            started_at = time.monotonic()
            wait_seconds = await self.read_once()
            # The notifications of this time cause one read.
            await asyncio.sleep(self._timings.min_read_interval_seconds)
            wait_seconds -= time.monotonic() - started_at

    async def read_once(self) -> float:
        """Read and apply the pauses. Returns the seconds until the next read."""
        interval = self._timings.read_interval_seconds
        try:
            pauses = await self._read()
        except Exception as error:
            self._logger.debug("reading the pauses failed, retrying: %s", format_error_line(error))
            return interval
        await self._apply(self._tasks.intersection(pauses.names))
        if pauses.has_expired and self._access.can_write:
            try:
                await self._resume_expired()
            except Exception as error:
                message = "ending the expired pauses of queues failed, retrying: %s"
                self._logger.debug(message, format_error_line(error))
        return interval if pauses.seconds_left is None else min(interval, pauses.seconds_left)

    async def _read(self) -> PausedTasks:
        if not self._access.can_write:
            self._access = await self._db.run(check_pauses(self._schemas))
        if not self._access.can_read:
            self._warn_if_unreadable()
            return NOTHING_PAUSED
        try:
            return await self._db.run(get_paused_tasks())
        except Exception as error:
            if get_sqlstate(error) not in MISSING_OBJECT | {INSUFFICIENT_PRIVILEGE}:
                raise
            self._access = NO_ACCESS
            return NOTHING_PAUSED

    def _warn_if_unreadable(self) -> None:
        if self._access.exists and not self._has_warned:
            self._has_warned = True
            self._logger.warning(
                "table pauses of schema %r is not readable for this role, this worker also runs "
                "paused tasks: grant select on it",
                self._schemas.companion,
            )

    async def _resume_expired(self) -> None:
        ended = await self._db.run(resume_expired_queues())
        for kind, name in ended:
            self._logger.info("pause of %s %s ended", kind, make_printable(repr(name)))
        if any(kind is PauseKind.QUEUE for kind, _ in ended):
            self._on_resumed()

    async def _apply(self, names: frozenset[str]) -> None:
        before = self._paused.get(PauseCause.PERSON)
        if names == before:
            return
        self._paused.set(PauseCause.PERSON, names)
        self._hooks.emit(
            PausesChanged(pool_id=self._lease.pool_id, paused_tasks=tuple(sorted(names)))
        )
        if names - before:
            await self._on_paused(names - before)
        if before - names:
            self._on_resumed()
