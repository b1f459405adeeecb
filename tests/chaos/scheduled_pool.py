"""One or two real pools on a scheduled loop: how they live and are stopped, and what must hold."""

import asyncio
import gc
import random
import re
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, NamedTuple

import psycopg

from graphile_worker import LocalQueueOptions, WorkerOptions
from graphile_worker import _assembly as assembly_module
from graphile_worker._lease.lease import Lease
from graphile_worker._support.logs import resolve_logger
from graphile_worker._worker.pool import ShutdownTimings, WorkerPool
from graphile_worker._worker.process_pool import ProcessPool
from graphile_worker._worker.run_job import Executors
from graphile_worker._worker.threads import ThreadPool
from graphile_worker._worker_config import WorkerConfig
from graphile_worker.errors import JobsLeftLocked
from graphile_worker.events import JobLockLost, JobSucceeded
from graphile_worker.hooks import Hooks
from graphile_worker.options import RefetchDelayOptions, TaskProcessOptions
from tests.chaos.scheduled_table import TableOfJobs, Weather
from tests.chaos.scheduled_tasks import ENDLESS, SHORT, Bodies
from tests.chaos.scheduler import ScheduledLoop, Stuck, virtual

# What latencies and pauses may add to a time limit.
SLACK = 1.0
MOMENT = 0.0001
TIMINGS = ShutdownTimings()

# Seconds after which the database goes away in a rush.
RUSH = 0.4


@dataclass
class Course:
    """How a pool runs and stops; all times in seconds."""

    options: WorkerOptions
    once: bool
    stop: str
    stop_at: float
    force_after: float | None
    swept_at: float | None


class Played(NamedTuple):
    """What went wrong, and which statements happened when."""

    problems: list[str]
    history: list[tuple[float, str]]


class Scene:
    """One or two pools on one table, all by one number."""

    def __init__(self, seed: int, loop: ScheduledLoop) -> None:
        self._rng = random.Random(seed)
        self._loop = loop
        # Else there are traces of old runs in what is logged now.
        self._logger = resolve_logger(None)

    def play(self) -> Played:
        problems = self._loop.run_until_complete(self._play())
        # So that a task whose error was never retrieved reports it.
        gc.collect()
        return Played(problems + self._loop.problems, self._table.history)

    async def _play(self) -> list[str]:
        rng = self._rng
        self._table = TableOfJobs(rng, self._make_weather())
        self.is_calm = self._table.weather.is_calm
        self._heals = rng.random() < 0.7
        self._kinds = rng.choices(SHORT, k=rng.choice([1, 3, 10]))
        if rng.random() < 0.5:
            self._kinds.append(rng.choice(ENDLESS))
        self._is_rush = rng.random() < 0.05
        if self._is_rush:
            self._make_rush()
        self._bodies = Bodies(self._table, rng)
        self._pools: list[WorkerPool] = []
        self._table.on_announced = self._announce
        self._add(400 if self._is_rush else rng.choice([0, 5, 20, 40, 40, 200]))
        adding = asyncio.create_task(self._keep_adding())
        problems = await asyncio.gather(*(self._live(n) for n in range(rng.choice([1, 1, 2]))))
        adding.cancel()
        self._bodies.released.set()
        await asyncio.sleep(30)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        found = [each for some in problems for each in some] + self._table.problems
        return found + [f"is left: {each.get_coro()}" for each in left]

    def _make_weather(self) -> Weather:
        rng = self._rng
        if rng.random() < 0.2:
            return Weather(latency=rng.choice([0.0, 0.02]))
        outages = []
        if rng.random() < 0.3:
            since = self._loop.time() + rng.random() * rng.choice([0.2, 6])
            outages = [(since, since + rng.choice([0.5, 5, 60]))]
        return Weather(
            unheard=rng.choice([0, 0.05, 0.2]),
            unanswered=rng.choice([0, 0.05, 0.2]),
            latency=rng.choice([0.0, 0.001, 0.01, 0.01, 0.2, 3.0]),
            outages=outages,
        )

    def _make_rush(self) -> None:
        """Add many brief jobs, which are prefetched, before a long database outage."""
        since = self._loop.time() + RUSH
        self._table.weather = Weather(latency=0.002, outages=[(since, since + 60)])
        self._heals = self.is_calm = False
        self._kinds = ["brief"]

    def _add(self, count: int) -> None:
        rng = self._rng
        for _ in range(count):
            queue = rng.choice([None, None, None, "q1", "q2"])
            delay = rng.choice([0, 0, 0, 0.5, 2])
            kind = rng.choice(self._kinds)
            self._table.add(kind, queue=queue, delay=delay, priority=rng.choice([0, 0, 1]))
        self._announce(count)

    def _announce(self, count: int) -> None:
        for pool in self._pools:
            pool.wake(count)

    async def _keep_adding(self) -> None:
        for _ in range(self._rng.randrange(10)):
            await asyncio.sleep(self._rng.random())
            self._add(self._rng.randrange(1, 10))

    def _course(self) -> Course:
        rng = self._rng
        cancel_after, shutdown_timeout = rng.choice(
            [(5, 25), (None, 1), (1, None), (0.1, 0.2), (2, 1)]
        )
        stop = rng.choice(["graceful", "graceful", "forceful", "finish", "cancel"])
        force_after = rng.choice([None, 0.0, 0.5])
        if stop == "finish" or (stop == "graceful" and shutdown_timeout is None):
            # A second signal, because it would not end otherwise.
            force_after = 30.0
        queue = rng.choice(
            [
                None,
                LocalQueueOptions(),
                LocalQueueOptions(size=rng.choice([1, 5, 50]), ttl=timedelta(seconds=1)),
                LocalQueueOptions(
                    size=5, refetch_delay=RefetchDelayOptions(threshold=rng.choice([0, 3]))
                ),
            ]
        )
        delays = [None, timedelta(0), timedelta(milliseconds=50)]
        options = WorkerOptions(
            concurrency=rng.choice([1, 2, 5, 10]),
            poll_interval=timedelta(seconds=rng.choice([0.2, 2])),
            cancel_after=None if cancel_after is None else timedelta(seconds=cancel_after),
            shutdown_timeout=None
            if shutdown_timeout is None
            else timedelta(seconds=shutdown_timeout),
            local_queue=queue,
            complete_batch_delay=rng.choice(delays),
            fail_batch_delay=rng.choice(delays),
        )
        # While nothing runs yet, in the middle of the first steps, or later.
        stop_at = rng.choice([0.0, rng.random() / 20, *(rng.random() * 10 for _ in range(6))])
        if self._is_rush:
            # In the moment in which the outage is not noticed yet.
            stop_at = RUSH + rng.random() * 0.1
            options = replace(options, concurrency=10)
        swept_at = rng.choice([None, None, None, rng.random() * 5])
        return Course(options, rng.random() < 0.2, stop, stop_at, force_after, swept_at)

    async def _live(self, number: int) -> list[str]:
        course = self._course()
        plan, parts = self._built(f"pool-{number}", course)
        pool: WorkerPool = parts.pool
        self._pools.append(pool)
        life = Life(self, course, pool, self._table, parts.lease)
        plan.hooks.on(JobSucceeded)(lambda event: self._check_success(event, life.problems))
        plan.hooks.on(JobLockLost)(lambda event: self._check_loss(event, life.problems))
        running = asyncio.create_task(pool.run())
        beside = [
            asyncio.create_task(life.stop(running)),
            asyncio.create_task(parts.claimer.run()),
        ]
        if course.swept_at is not None:
            beside.append(asyncio.create_task(life.be_swept(course.swept_at)))
        error = await life.end_of(running)
        for each in beside:
            each.cancel()
        await life.finish(assembly_module._shut_down(plan, parts, None, error, None), error)
        return life.problems

    def _built(self, pool_id: str, course: Course) -> tuple[WorkerConfig, Any]:
        plan = WorkerConfig(
            options=course.options,
            tasks=self._bodies.tasks(),
            cron_items=None,
            hooks=Hooks(),
            logger=self._logger,
            lifespan=_nothing,
            forbidden_flags=None,
            migrate=False,
        )
        databases = SimpleNamespace(own=self._table, tasks=self._table, sync_tasks=None)
        parts: Any = SimpleNamespace(
            lease=Lease(pool_id=pool_id),
            recorder=None,
            progress=None,
            limited=None,
            gate=None,
            databases=databases,
            slow_query_database=self._table,
            slow_query_database_at_shutdown=self._table,
            is_external=False,
            lease_service=self,
            logger=self._logger,
            task_client=None,
            sync_task_client=None,
            executors=Executors(ThreadPool(), ProcessPool(TaskProcessOptions())),
            has_pool=True,
        )
        parts.pool = assembly_module._build_pool(plan, parts, None, once=course.once)
        parts.claimer.on_reclaimed = parts.pool.discard_run
        parts.claimer.on_released = parts.pool.wake
        # Others know it, so that it asks whether it was swept.
        parts.lease.renew(self._loop.time())
        return plan, parts

    def heal(self) -> None:
        if self._heals:
            self._table.heal()

    @property
    def heals(self) -> bool:
        return self._heals

    def _check_success(self, event: JobSucceeded, problems: list[str]) -> None:
        claim = self._table.claims[int(event.job.payload_text)]
        # A job of a recovered pool counts as done if the query for its state has no answer.
        if event.job.id in self._table.rows and claim.written != "swept":
            problems.append(f"job {event.job.id} is announced as done and is still there")

    def _check_loss(self, event: JobLockLost, problems: list[str]) -> None:
        claim = self._table.claims[int(event.job.payload_text)]
        if claim.job.claim is claim:
            problems.append(f"job {event.job.id} is announced as lost though its pool has it")


class Life:
    """When a pool is stopped, and whether it stops as it should."""

    def __init__(
        self, scene: Scene, course: Course, pool: WorkerPool, table: TableOfJobs, lease: Lease
    ) -> None:
        self.problems: list[str] = []
        self._scene = scene
        self._course = course
        self._pool = pool
        self._table = table
        self._lease = lease
        self._loop = asyncio.get_running_loop()
        self._told_at: float | None = None
        self._ended_at = 0.0

    async def stop(self, running: asyncio.Task[None]) -> None:
        course = self._course
        await asyncio.sleep(course.stop_at)
        self._check_idle()
        self._scene.heal()
        self._told_at = self._loop.time()
        match course.stop:
            case "graceful":
                self._pool.stop_gracefully("bye")
            case "forceful":
                self._pool.stop_forcefully("bye")
            case "finish":
                self._pool.finish()
            case _:
                running.cancel()
        if course.force_after is not None and course.stop != "cancel":
            await asyncio.sleep(course.force_after)
            self._pool.stop_forcefully("now")

    async def be_swept(self, at: float) -> None:
        """Declare the pool dead; it notices, and continues with another id: see LeaseService."""
        await asyncio.sleep(at)
        old = self._pool.id
        self._table.sweep(old)
        self._lease.rotate_id(f"{old}-again")
        self._pool.revoke_jobs(lambda held: held.pool_id == old)

    async def end_of(self, running: asyncio.Task[None]) -> BaseException | None:
        await asyncio.wait([running])
        self._ended_at = self._loop.time()
        self._table.ending |= self._lease.pool_ids
        error = None
        if not running.cancelled():
            error = running.exception()
        if error is not None and not (
            self._course.once and isinstance(error, psycopg.Error | TimeoutError)
        ):
            self.problems.append(f"run raised {error!r}")
        self._check_time()
        if self._told_at is None and error is None and self._scene.is_calm:
            self._check_nothing_is_ready()
        return error

    async def finish(self, finishing: Awaitable[None], error: BaseException | None) -> None:
        reported: list[int] = []
        try:
            await finishing
        except JobsLeftLocked as left:
            reported = left.job_ids
        # Or what came first has a note of it.
        for note in getattr(error, "__notes__", []):
            reported += [int(each) for each in re.findall(r"\d+", note)]
        took = self._loop.time() - self._ended_at
        if took > 3 * TIMINGS.write_timeout_seconds + SLACK:
            self.problems.append(f"the last writes took {took:.1f} s")
        self._check_locks(reported)
        self._check_starts()

    def _check_time(self) -> None:
        if self._told_at is None:
            return
        took = self._ended_at - self._told_at
        if took > self._longest() + SLACK:
            self.problems.append(f"to stop ({self._course.stop}) took {took:.1f} s")

    def _check_idle(self) -> None:
        """Where all is well no job waits for long beside a worker that waits too."""
        patience = self._course.options.poll_interval.total_seconds() + SLACK
        since = self._loop.time() - patience
        ours = [each for each in self._table.claims if each.pool in self._lease.pool_ids]
        idle = sum(not each.claimed for each in self._pool._workers)
        # One that has just ended a job waits only for the answer to its next fetch.
        idle -= sum(each.ended_at > since for each in ours)
        is_busy = idle <= 0 or any(each.at > since for each in ours)
        if is_busy or not self._scene.is_calm:
            return
        for row in self._table.claimable(since):
            self.problems.append(f"job {row.id} waits beside an idle worker")

    def _check_nothing_is_ready(self) -> None:
        for row in self._table.claimable(self._ended_at - SLACK):
            self.problems.append(f"job {row.id} was left, though it could run once")
        for claim in self._table.locked:
            if claim.pool in self._lease.pool_ids and claim.body == "not begun":
                self.problems.append(f"job {claim.job.id} was taken and left, though it could run")

    def _longest(self) -> float:
        course = self._course
        if course.stop == "cancel":
            return 2 * TIMINGS.release_timeout_seconds
        shutdown_timeout = course.options.shutdown_timeout
        limits = [0.0 if course.stop == "forceful" else course.force_after]
        if shutdown_timeout is not None and course.stop != "finish":
            limits.append(shutdown_timeout.total_seconds())
        least = min(each for each in limits if each is not None)
        # Tasks clean up, and then the source has a moment to release its jobs.
        return least + 2 * TIMINGS.cleanup_timeout_seconds

    def _check_locks(self, reported: list[int]) -> None:
        left = [each for each in self._table.locked if each.pool in self._lease.pool_ids]
        if self._scene.heals and self._told_at is not None:
            for claim in left:
                self.problems.append(f"job {claim.job.id} stays locked, its task {claim.body}")
            held = [
                each for each in self._table.queues.values() if each.pool in self._lease.pool_ids
            ]
            for claim in held:
                self.problems.append(f"queue {claim.job.queue} stays locked")
        for claim in left:
            # Jobs of a claim without an answer are unknown to the pool.
            if claim.job.id not in reported and claim.body != "not begun":
                self.problems.append(f"job {claim.job.id} stays locked and is not named")

    def _check_starts(self) -> None:
        if self._told_at is None:
            return
        for claim in self._table.claims:
            # A job that was given to a worker at that very moment still begins.
            if claim.pool in self._lease.pool_ids and claim.body_at > self._told_at + MOMENT:
                self.problems.append(f"job {claim.job.id} was begun after the pool was stopped")


@asynccontextmanager
async def _nothing() -> AsyncIterator[None]:
    yield


def play(seed: int) -> Played:
    """What comes of this number."""
    with virtual(seed) as loop:
        try:
            return Scene(seed, loop).play()
        except Stuck as error:
            waiting = [f"waits: {each.get_coro()}" for each in asyncio.all_tasks(loop)]
            return Played([str(error), *waiting], [])
