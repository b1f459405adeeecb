"""What keeps a pool alive in the eyes of others: its heartbeat, and what follows if that is missed.

Heartbeat and watchdog run beside the worker's own loop, which a task may block; fence and sweeper
run in it.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from types import TracebackType
from typing import Any, Self, TypeVar

from graphile_worker.db.reserved import WorkerDatabases
from graphile_worker.error_text import error_line
from graphile_worker.events import HeartbeatFailed, HeartbeatRecovered, PoolFenced, PoolSwept
from graphile_worker.hooks import Hooks
from graphile_worker.lease import Lease
from graphile_worker.logs import Logger
from graphile_worker.maintenance.heartbeat import Heartbeat, Pool
from graphile_worker.maintenance.recovery import Sweeper
from graphile_worker.maintenance.side_loop import SideLoop
from graphile_worker.maintenance.watchdog import Watchdog
from graphile_worker.options import WorkerOptions
from graphile_worker.sql.workers import MOST_NAMES
from graphile_worker.worker.claims import Claims
from graphile_worker.worker.fence import Fence
from graphile_worker.worker.pool import WorkerPool
from graphile_worker.worker.run_job import job_of

T = TypeVar("T")

# Seconds in which a program that ends says so, if its database answers.
SIGN_OFF_WITHIN = 2.0

# Seconds before a heartbeat that has not ended is cancelled again.
CANCEL_AGAIN_AFTER = 2.0


class Lifeline:
    """Entered before the first job is taken, left after the last was let go of."""

    def __init__(
        self,
        lease: Lease,
        databases: WorkerDatabases,
        hooks: Hooks,
        logger: Logger,
        options: WorkerOptions,
        tasks: Mapping[str, object],
    ) -> None:
        self._lease = lease
        self._databases = databases
        self._hooks = hooks
        self._logger = logger
        self._options = options
        self._pool: WorkerPool | None = None
        self._claims: Claims | None = None
        self._loop = asyncio.get_running_loop()
        self._side = SideLoop()
        self._heartbeat = self._make_heartbeat(tasks)
        self._beating: asyncio.Task[Any] | None = None
        self._watchdog: Watchdog | None = None
        if options.blocked_after is not None:
            self._watchdog = Watchdog(logger, options.blocked_after, partial(job_of, lease.ids))

    def watch(self, pool: WorkerPool, claims: Claims) -> None:
        """That pool is the one; its claims know what it holds."""
        self._pool = pool
        self._claims = claims
        claims.on_reclaimed = pool.drop
        claims.on_released = pool.nudge

    def fence(self) -> Fence:
        return Fence(self._lease, self._give_up)

    def sweeper(self) -> Sweeper | None:
        """Whoever takes the jobs of dead pools, if this one shall."""
        if self._options.recovery is None or self._pool is None:
            return None
        return Sweeper(
            self._databases.own,
            self._lease,
            self._hooks,
            self._logger,
            self._options.recovery,
            on_recovered=self._pool.nudge,
        )

    async def __aenter__(self) -> Self:
        self._side.start()
        if self._watchdog is not None:
            self._watchdog.start()
        try:
            await self._call(self._heartbeat.register())
        except BaseException:
            await self._end()
            raise
        self._say_what_is_missing()
        if self._databases.heartbeat is None:
            self._beating = asyncio.create_task(self._heartbeat.run())
        else:
            self._side.begin(self._beat_beside())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            # Or it would find its row gone, and think that it was swept.
            await self._call(self._stop_beating())
            if self._holds_nothing:
                async with asyncio.timeout(SIGN_OFF_WITHIN):
                    await self._call(self._heartbeat.sign_off())
        except Exception as failure:
            # Others then find it silent, and nothing that it held.
            self._logger.debug("could not sign off: %s", error_line(failure))
        finally:
            await self._end()

    @property
    def _holds_nothing(self) -> bool:
        return self._pool is None or not self._pool.holds_jobs

    async def _beat_beside(self) -> None:
        self._beating = asyncio.current_task()
        await self._heartbeat.run()

    async def _stop_beating(self) -> None:
        """Cancel the heartbeat until it has ended, in its own loop.

        Before Python 3.12, asyncio.wait_for can lose a cancellation.
        """
        while self._beating is not None and not self._beating.done():
            self._beating.cancel()
            await asyncio.wait([self._beating], timeout=CANCEL_AGAIN_AFTER)

    async def _end(self) -> None:
        if self._watchdog is not None:
            self._watchdog.stop()
        try:
            if self._databases.heartbeat is not None:
                with suppress(Exception):
                    async with asyncio.timeout(SIGN_OFF_WITHIN):
                        await self._side.call(self._databases.heartbeat.close())
        finally:
            await self._side.stop()

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        """Where the heartbeat's connection is: a pool that was lent lives in the worker's loop."""
        return await (work if self._databases.heartbeat is None else self._side.call(work))

    def _say_what_is_missing(self) -> None:
        if self._options.recovery is None:
            return
        if not self._heartbeat.has_registry:
            self._logger.warning(
                "the companion schema cannot be used: if this worker dies, its jobs wait four hours"
            )
        elif self._databases.heartbeat is None:
            self._logger.info(
                "heartbeats go through the pool that was lent: a task that blocks the event loop "
                "for %s makes this worker look dead",
                self._options.recovery.threshold,
            )

    def _make_heartbeat(self, tasks: Mapping[str, object]) -> Heartbeat:
        recovery = self._options.recovery
        return Heartbeat(
            self._databases.heartbeat or self._databases.own,
            self._databases.own.schemas,
            self._lease,
            Pool(
                started_ids=lambda: [] if self._pool is None else self._pool.started_ids,
                held=lambda: [] if self._claims is None else list(self._claims.held.values()),
                ids_in_use=lambda: set() if self._claims is None else self._claims.ids_in_use,
                on_swept=self._on_loop(self._swept),
                on_lost=self._on_loop(self._lost),
                on_error=self._on_loop(self._failed),
                on_reconnected=self._on_loop(self._reconnected),
                on_recovered=self._on_loop(self._recovered),
            ),
            details=_details(self._options, tasks),
            threshold=None if recovery is None else recovery.threshold,
            every=None if recovery is None else recovery.heartbeat_every,
        )

    def _on_loop(self, tell: Callable[..., None]) -> Callable[..., None]:
        """The same from any thread; the loop may be gone with its program."""

        def tell_on_loop(*args: Any) -> None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(tell, *args)

        return tell_on_loop

    # What the heartbeat has to say, on the worker's loop

    def _swept(self, pool_id: str, new_id: str) -> None:
        lost: tuple[int, ...] = ()
        if self._pool is not None:
            lost = self._pool.give_up_jobs(lambda held: held.pool_id == pool_id)
        # Whoever logs this must know that the new one is ours too.
        self._lease.ids.add(new_id)
        self._hooks.emit(PoolSwept(pool_id=new_id, old_pool_id=pool_id, job_ids=lost))

    def _lost(self, job_ids: set[int]) -> None:
        # One that ended since is no loss.
        if self._pool is not None and self._pool.give_up_jobs(lambda held: held.job.id in job_ids):
            self._heartbeat.change_id()

    def _failed(self, error: Exception, failures: int) -> None:
        self._hooks.emit(
            HeartbeatFailed(pool_id=self._lease.pool_id, error=error, failures=failures)
        )

    def _reconnected(self) -> None:
        if self._claims is not None:
            self._claims.suspect()

    def _recovered(self) -> None:
        self._hooks.emit(HeartbeatRecovered(pool_id=self._lease.pool_id))

    def _give_up(self) -> None:
        given_up = () if self._pool is None else self._pool.give_up_jobs(lambda _: True)
        silence = timedelta(seconds=self._lease.silence)
        self._hooks.emit(PoolFenced(pool_id=self._lease.pool_id, silence=silence, job_ids=given_up))


def _version() -> str:
    try:
        return version("graphile-worker")
    except PackageNotFoundError:
        # Frozen, or copied into another program.
        return "unknown"


def _details(options: WorkerOptions, tasks: Mapping[str, object]) -> dict[str, Any]:
    return {
        "runtime": "python",
        "version": _version(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "concurrency": options.concurrency,
        "tasks": sorted(tasks)[:MOST_NAMES],
    }
