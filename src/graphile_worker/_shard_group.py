"""ShardGroup: one worker for each shard in one process, which start and stop together."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol

from graphile_worker._db.retry import compute_backoff, is_outage
from graphile_worker._metrics.definitions import CONCURRENCY, DATABASE_REACHABLE
from graphile_worker._metrics.recorder import Recorder, build_gauges
from graphile_worker._metrics.values import Families, add_shard
from graphile_worker._support.error_format import format_error_line
from graphile_worker._support.logs import Logger
from graphile_worker._worker.pool import WorkerPool
from graphile_worker.errors import WorkerStoppedError


class ShardRunner(Protocol):
    """The runner of one shard. It can be started once."""

    @property
    def is_ready(self) -> bool: ...

    async def start(self) -> Any: ...

    async def wait(self) -> None: ...

    async def run_once(self) -> int: ...

    def finish(self) -> None: ...

    def _request_stop(self, stop_pool: Callable[[WorkerPool], None]) -> None: ...


class ShardGroup:
    """Runs the workers of all shards, and stops them like the pool of one.

    A shard whose database is unreachable is retried until it answers. Any other error stops all
    shards.
    """

    def __init__(
        self,
        names: Iterable[str],
        build_runner: Callable[[str], ShardRunner],
        logger: Logger,
        recorder: Recorder | None,
        concurrency: int,
    ) -> None:
        self._names = tuple(names)
        self._build_runner = build_runner
        self._logger = logger
        self._recorder = recorder
        self._concurrency = concurrency
        self._runners: dict[str, ShardRunner] = {}
        self._unreachable: set[str] = set()
        self._stop = asyncio.Event()
        # How to stop a runner that is created while the others stop.
        self._stop_pool: Callable[[WorkerPool], None] | None = None

    # As WorkerPool

    @property
    def is_ready(self) -> bool:
        """Return whether the worker of at least one shard is ready."""
        return any(runner.is_ready for runner in self._runners.values())

    @property
    def is_stopping(self) -> bool:
        return self._stop_pool is not None

    def stop_gracefully(self, message: str) -> None:
        self._stop_all(lambda pool: pool.stop_gracefully(message))

    def stop_forcefully(self, message: str) -> None:
        self._stop_all(lambda pool: pool.stop_forcefully(message))

    def finish(self) -> None:
        self._stop.set()
        for runner in self._runners.values():
            runner.finish()

    # Running

    async def run(self, on_started: Callable[[], None]) -> None:
        """Run all shards until they are stopped. Raise the first error after all have stopped.

        Raises:
            Exception: No shard is reachable at the start, or a shard failed.
        """
        loop = asyncio.get_running_loop()
        first_attempts = {name: loop.create_future() for name in self._names}
        running = [
            asyncio.create_task(self._run_shard(name, first), name=f"shard {name}")
            for name, first in first_attempts.items()
        ]
        for task in running:
            task.add_done_callback(self._on_shard_done)
        if self._recorder is not None:
            self._recorder.add_gauges(self._collect_gauges)
        try:
            errors = await asyncio.gather(*first_attempts.values())
            if all(errors) and not self._stop.is_set():
                self.stop_gracefully("no shard is reachable")
                await asyncio.wait(running)
                raise next(error for error in errors if error)
            if not any(task.done() for task in running):
                on_started()
            await asyncio.wait(running)
        finally:
            if self._recorder is not None:
                self._recorder.remove_gauges(self._collect_gauges)
            for task in running:
                task.cancel()
            await asyncio.wait(running)
        for task in running:
            task.result()

    async def run_once(self) -> int:
        """Run the ready jobs of all shards, and return their number.

        Raises:
            Exception: A shard is unreachable or failed. The other shards have ended.
        """
        total = 0
        # A task may have added a job on a shard that had ended.
        while (count := await self._run_round()) and not self._stop.is_set():
            total += count
        return total + count

    async def _run_round(self) -> int:
        self._runners = {name: self._build_runner(name) for name in self._names}
        running = [asyncio.create_task(each.run_once()) for each in self._runners.values()]
        try:
            await asyncio.wait(running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.wait(running)
        # A shard that was stopped while it started has run nothing.
        return sum(task.result() for task in running if not task.cancelled())

    async def _run_shard(self, name: str, first: asyncio.Future[Exception | None]) -> None:
        attempt = 0
        try:
            while not self._stop.is_set():
                runner = self._runners[name] = self._build_runner(name)
                error = await self._run_until_outage(name, runner, first)
                if error is None or self._stop.is_set():
                    return
                self._unreachable.add(name)
                if not first.done():
                    first.set_result(error)
                delay = compute_backoff(attempt)
                attempt += 1
                self._logger.warning(
                    "shard %r is unreachable, other shards continue, retrying: %s",
                    name,
                    format_error_line(error),
                )
                with suppress(TimeoutError):
                    async with asyncio.timeout(delay):
                        await self._stop.wait()
        finally:
            if not first.done():
                first.set_result(None)

    async def _run_until_outage(
        self, name: str, runner: ShardRunner, first: asyncio.Future[Exception | None]
    ) -> Exception | None:
        """Run a shard to its end, and return the error if its database is unreachable."""
        has_started = False
        try:
            await runner.start()
            has_started = True
            self._unreachable.discard(name)
            if not first.done():
                first.set_result(None)
            if self._stop_pool is not None:
                runner._request_stop(self._stop_pool)
            elif self._stop.is_set():
                runner.finish()
            await runner.wait()
        except WorkerStoppedError:
            # It was stopped while it started.
            if not self._stop.is_set():
                raise
        except asyncio.CancelledError:
            runner._request_stop(lambda pool: pool.stop_forcefully("the program ends"))
            with suppress(Exception):
                await runner.wait()
            raise
        except Exception as error:
            if not is_outage(error) or (has_started and self._stop.is_set()):
                raise
            # A shard that was not reachable when the group was stopped has no jobs to finish.
            return error
        return None

    def _on_shard_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.stop_gracefully(f"{task.get_name()} failed: {format_error_line(error)}")

    def _stop_all(self, stop_pool: Callable[[WorkerPool], None]) -> None:
        self._stop_pool = stop_pool
        self._stop.set()
        for runner in self._runners.values():
            runner._request_stop(stop_pool)

    def _collect_gauges(self) -> Families:
        families = build_gauges({CONCURRENCY: self._concurrency})
        for name in sorted(self._unreachable):
            families.setdefault(DATABASE_REACHABLE, {}).update(
                add_shard(build_gauges({DATABASE_REACHABLE: 0}), name)[DATABASE_REACHABLE]
            )
        return families
