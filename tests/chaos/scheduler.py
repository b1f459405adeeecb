"""The real pool on an event loop of our own: callbacks in random order, time that jumps, and a
database that is only a table, slow and unreliable. All of it follows from one number."""

import asyncio
import gc
import heapq
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, NamedTuple

import psycopg

from graphile_worker import JobContext, LocalQueueOptions, Retry, Snooze, WorkerOptions
from graphile_worker import assembly as assembly_module
from graphile_worker.errors import JobsLeftLocked
from graphile_worker.events import JobSucceeded
from graphile_worker.hooks import Hooks
from graphile_worker.lease import Lease
from graphile_worker.loading import tasks_of
from graphile_worker.logs import logger_of
from graphile_worker.options import RefetchDelayOptions, TaskProcessOptions
from graphile_worker.sql.query import Query
from graphile_worker.tasks import Task
from graphile_worker.tasks.task import TaskOptions
from graphile_worker.worker import pool as pool_module
from graphile_worker.worker import worker as worker_module
from graphile_worker.worker.children import Children
from graphile_worker.worker.pool import WorkerPool
from graphile_worker.worker.run_job import Places
from graphile_worker.worker.threads import Threads

# Callbacks after which a run does not seem to come to an end.
MOST_STEPS = 200_000

# Seconds after which a statement is given up, as in db/reserved.py.
ANSWER_WITHIN = 10.0

# What latencies and pauses may add to a time limit.
SLACK = 1.0


class Stuck(AssertionError):
    """Nothing is ready and no timer is set, or there is no end of it."""


class ScheduledLoop(asyncio.BaseEventLoop):
    """Runs what is ready in an order of its own; when nothing is, time jumps to the next timer."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.problems: list[str] = []
        self._rng = rng
        self._now = 1000.0
        self._steps = 0
        self.set_exception_handler(self._complain)

    def time(self) -> float:
        return self._now

    def monotonic(self) -> float:
        """The same for those who look at a clock: no two looks show the same."""
        self._now += 1e-9
        return self._now

    def _run_once(self) -> None:
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise Stuck(f"no end after {MOST_STEPS} callbacks")
        while not self._ready:
            self._jump()
        # Any of those that are ready may be next: swap it with the last.
        ready: Any = self._ready
        at = self._rng.randrange(len(ready))
        ready[at], ready[-1] = ready[-1], ready[at]
        handle = ready.pop()
        if not handle._cancelled:
            handle._run()

    def _jump(self) -> None:
        timers: Any = self._scheduled
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)._scheduled = False
        if not timers:
            raise Stuck("everybody waits for somebody else")
        self._now = max(self._now, timers[0]._when)
        while timers and timers[0]._when <= self._now:
            timer = heapq.heappop(timers)
            timer._scheduled = False
            self._ready.append(timer)

    def _complain(self, _loop: object, context: dict[str, Any]) -> None:
        self.problems.append(f"{context['message']}: {context.get('exception')!r}")

    def _write_to_self(self) -> None:
        """There is nothing to be woken from."""


@contextmanager
def virtual(seed: int) -> Iterator[ScheduledLoop]:
    """A loop by whose time the whole library lives, and by whose number its dice fall."""
    loop = ScheduledLoop(random.Random(seed))
    clock = SimpleNamespace(monotonic=loop.monotonic)
    ours = [each for name, each in sys.modules.items() if name.startswith("graphile_worker")]
    timed: list[Any] = [each for each in ours if getattr(each, "time", None) is time]
    dice = random.getstate()
    random.seed(seed)
    for module in timed:
        module.time = clock
    try:
        yield loop
    finally:
        for module in timed:
            module.time = time
        random.setstate(dice)
        loop.close()


# The database


@dataclass
class Claim:
    """That a pool took a job: what its task did, and what was written about it."""

    number: int
    job: "Row"
    pool: str
    at: float
    body: str = "not begun"
    body_at: float = 0.0
    written: str | None = None

    @property
    def locked_at(self) -> float:
        """No two claims are of the same time."""
        return round(self.at + self.number * 1e-6, 6)


@dataclass
class Row:
    id: int
    kind: str
    queue: str | None
    run_at: float
    priority: int
    attempts: int = 0
    claim: Claim | None = None
    free_since: float = 0.0


@dataclass
class Weather:
    """How bad it is: the chances that a statement or its answer gets lost, and how slow it is."""

    unheard: float = 0.0
    unanswered: float = 0.0
    latency: float = 0.01
    # From when to when nobody answers.
    outages: list[tuple[float, float]] = field(default_factory=list)

    @property
    def is_calm(self) -> bool:
        return not (self.unheard or self.unanswered or self.outages) and self.latency < 0.1


class TableOfJobs:
    """Knows who holds what. Each statement happens at one moment, fenced as in SQL."""

    def __init__(self, rng: random.Random, weather: Weather) -> None:
        self.weather = weather
        self.rows: dict[int, Row] = {}
        self.queues: dict[int, Claim] = {}
        self.claims: list[Claim] = []
        self.problems: list[str] = []
        self.history: list[tuple[float, str]] = []
        # Pools that have come to the end, where what still runs is handed back.
        self.ending: set[str] = set()
        self.on_announced: Callable[[int], None] = lambda count: None
        self._rng = rng
        self._kinds: list[str] = []
        self._queues = ["q1", "q2"]
        self._free_since: dict[int, float] = {}
        self._healed = asyncio.Event()

    # As a database of ours

    async def run(self, query: Query[Any]) -> Any:
        await self._send(query)
        answer = self._carry_out(query)
        await self._wait()
        if self._rng.random() < self.weather.unanswered:
            raise psycopg.OperationalError("the answer got lost")
        return query.read(answer)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """What is done in it happens when it commits, of which one may not hear."""
        asked: list[Query[Any]] = []

        async def ask(query: Query[Any]) -> Any:
            await self._send(None)
            asked.append(query)
            return query.read([(each,) for each in self._held_of(query)])

        yield SimpleNamespace(run=ask, raw=None)
        await self._send(None)
        for query in asked:
            self._carry_out(query)
        await self._wait()
        if self._rng.random() < self.weather.unanswered:
            raise psycopg.OperationalError("the answer got lost")

    def heal(self) -> None:
        """All is well from now on."""
        self.weather = Weather(latency=0.01)
        self._healed.set()

    def add(self, kind: str, *, queue: str | None, delay: float, priority: int) -> None:
        number = len(self.rows) + 1 + sum(each.job.id not in self.rows for each in self.claims)
        while number in self.rows:
            number += 1
        now = asyncio.get_running_loop().time()
        self.rows[number] = Row(number, kind, queue, round(now + delay, 6), priority)

    def claimable(self, since: float) -> list[Row]:
        """What could be taken since that time already."""
        rows = [row for row in self.rows.values() if row.claim is None]
        due = [row for row in rows if max(row.run_at, row.free_since) <= since]
        queues = {queue for queue, free_since in self._free_since.items() if free_since > since}
        return [row for row in due if self._queue_id(row) not in self.queues.keys() | queues]

    @property
    def locked(self) -> list[Claim]:
        return [each.claim for each in self.rows.values() if each.claim is not None]

    async def _send(self, query: Query[Any] | None) -> None:
        try:
            await self._wait()
            if self._is_out:
                async with asyncio.timeout(ANSWER_WITHIN):
                    await self._healed.wait()
                raise psycopg.OperationalError("the connection was lost")
        except asyncio.CancelledError:
            # Perhaps its server has heard it already.
            if query is not None and self._rng.random() < 0.5:
                self._carry_out(query)
            raise
        if self._rng.random() < self.weather.unheard:
            raise psycopg.OperationalError("nobody listens")

    async def _wait(self) -> None:
        await asyncio.sleep(self._rng.random() * self.weather.latency)

    @property
    def _is_out(self) -> bool:
        now = asyncio.get_running_loop().time()
        return any(since <= now < until for since, until in self.weather.outages)

    # What statements do

    def _carry_out(self, query: Query[Any]) -> list[tuple[Any, ...]]:
        args: Any = query.args
        self.history.append((asyncio.get_running_loop().time(), query.statement))
        match query.statement:
            case "register_tasks":
                return []
            case "get_task_ids":
                self._kinds = list(args[0])
                return list(enumerate(self._kinds))
            case "find_indexes" | "find_pool":
                return [(True,)]
            case "announce_jobs":
                self.on_announced(args[0])
                return []
            case "get_plain_jobs" | "get_soonest_jobs" | "get_jobs" | "get_jobs_unindexed":
                return self._take(query.statement, args)
            case "return_unheld_jobs":
                return self._return_unheld(*args)
            case "finish_jobs":
                ids = [int(each) for each in args[0].strip("{}").split(",")]
                return self._end("finished", dict.fromkeys(ids), *args[1:])
            case "fail_jobs" | "return_jobs":
                how = "failed" if query.statement == "fail_jobs" else "returned"
                return self._end(how, {each["id"]: each for each in json.loads(args[0])}, *args[1:])
            case other:
                raise AssertionError(f"nobody said what {other} does")

    def _take(self, way: str, args: Any) -> list[tuple[Any, ...]]:
        pool, _, _, limit, _, priority, first = args
        now = asyncio.get_running_loop().time()
        ready = [row for row in self.rows.values() if row.claim is None and row.run_at <= now]
        if priority is not None:
            since = (priority, datetime.fromisoformat(first).timestamp() - 1e-6)
            ready = [row for row in ready if (row.priority, row.run_at) >= since]
        if way == "get_plain_jobs" and any(row.queue for row in ready):
            return []
        taken, seen = [], set(self.queues)
        for row in sorted(ready, key=lambda row: (row.priority, row.run_at, row.id)):
            queue = self._queue_id(row)
            if len(taken) < limit and (queue is None or queue not in seen):
                seen |= set() if queue is None else {queue}
                taken.append(self._claim(row, pool, now))
        return taken

    def _claim(self, row: Row, pool: str, now: float) -> tuple[Any, ...]:
        claim = row.claim = Claim(len(self.claims), row, pool, now)
        self.claims.append(claim)
        row.attempts += 1
        queue = self._queue_id(row)
        if queue is not None:
            self.queues[queue] = claim
        # The claim is the payload, so that the task knows for which one it runs.
        return (
            row.id,
            self._kinds.index(row.kind),
            row.queue,
            str(claim.number),
            row.priority,
            f"{row.run_at:.6f}",
            row.attempts,
            25,
            None,
            "0.000000",
            None,
            None,
            f"{claim.locked_at:.6f}",
            pool,
            0,
            None,
            queue,
        )

    def _end(
        self, how: str, asked: Mapping[int, Any], pool: str, queues: list[int], again: bool
    ) -> list[tuple[Any, ...]]:
        held = [self.rows[each] for each in asked if self._holds(pool, each)]
        if again:
            held = [row for row in held if _is_same(row.claim, asked[row.id])]
        for row in held:
            self._write(row, how, asked[row.id])
        if held or not again:
            self._free(pool, queues)
        return [(row.id,) for row in held]

    def _return_unheld(
        self, pool: str, known: list[int], queues: list[int]
    ) -> list[tuple[Any, ...]]:
        rows = [row for row in self.rows.values() if self._holds(pool, row.id)]
        returned = [row for row in rows if row.id not in known]
        for row in returned:
            self._write(row, "returned", {})
        self._free(pool, [each for each in self.queues if each not in queues])
        return [(row.id,) for row in returned]

    def _write(self, row: Row, how: str, asked: Any) -> None:
        claim = row.claim
        assert claim is not None
        self._check(claim, how)
        claim.written, row.claim = how, None
        now = asyncio.get_running_loop().time()
        if how == "finished":
            del self.rows[row.id]
            return
        row.free_since = now
        if how == "returned":
            row.attempts -= 1
        if asked.get("delay") is not None:
            row.run_at = round(now + asked["delay"] / 1e6, 6)
        elif how == "failed":
            row.run_at = round(now + 2.718281 * row.attempts, 6)

    def _check(self, claim: Claim, how: str) -> None:
        """Is that what the task did, and has it done it?"""
        if how not in MEANS[claim.body] and not (
            claim.body == "runs" and how == "returned" and claim.pool in self.ending
        ):
            self.problems.append(
                f"job {claim.job.id} ({claim.job.kind}): {how} as claim {claim.number}, "
                f"whose task {claim.body}"
            )

    def _free(self, pool: str, queues: list[int]) -> None:
        for queue in queues:
            if queue in self.queues and self.queues[queue].pool == pool:
                del self.queues[queue]
                self._free_since[queue] = asyncio.get_running_loop().time()

    def _holds(self, pool: str, job_id: int) -> bool:
        row = self.rows.get(job_id)
        return row is not None and row.claim is not None and row.claim.pool == pool

    def _held_of(self, query: Query[Any]) -> list[int]:
        text, pool, *_ = query.args
        ids = [int(each) for each in str(text).strip("{}").split(",")]
        return [each for each in ids if self._holds(str(pool), each)]

    def _queue_id(self, row: Row) -> int | None:
        return None if row.queue is None else self._queues.index(row.queue)


def _is_same(claim: Claim | None, asked: Any) -> bool:
    """Is it still the claim that an ending is about, if that says when it was?"""
    if claim is None or not asked or asked.get("locked_at") is None:
        return True
    said = datetime.fromisoformat(asked["locked_at"]).timestamp()
    return abs(said - claim.locked_at) < 5e-7


# What may be written about a job, by what its task has done.
MEANS: dict[str, set[str]] = {
    "not begun": {"returned"},
    "runs": set(),
    "commits": {"finished"},
    "has returned": {"finished"},
    "has raised": {"failed"},
    "has snoozed": {"returned"},
    "was cancelled": {"returned"},
    "was cancelled in time": {"returned", "failed"},
}


# The tasks

SHORT = (
    *("quick", "quick", "sleepy", "sleepy", "failing", "retrying", "retrying", "snoozing"),
    *("quitting", "limited", "transacting"),
)
# These do not end by themselves.
ENDLESS = ("hanging", "tidy", "stubborn", "polite")
KINDS = sorted({*SHORT, *ENDLESS})


class Bodies:
    """Tasks of all kinds, each of which notes what it did."""

    def __init__(self, table: TableOfJobs, rng: random.Random) -> None:
        self.released = asyncio.Event()
        self._table = table
        self._rng = rng
        self._running: dict[int, Claim] = {}

    def tasks(self) -> dict[str, Task[..., Any]]:
        tasks = tasks_of({kind: self._noted(kind, getattr(self, f"_{kind}")) for kind in KINDS})
        tasks["limited"].options = TaskOptions(timeout=timedelta(milliseconds=200))
        return tasks

    def _noted(self, kind: str, body: Callable[[Any], Awaitable[None]]) -> Any:
        async def run(payload: int, ctx: JobContext) -> None:
            claim = self._begin(self._table.claims[payload])
            try:
                await body(ctx)
            except asyncio.CancelledError:
                claim.body = "was cancelled"
                if kind in ("limited", "quitting"):
                    claim.body = "was cancelled in time"
                raise
            except Snooze:
                claim.body = "has snoozed"
                raise
            except Exception:
                claim.body = "has raised"
                raise
            else:
                claim.body = "has returned"
            finally:
                if self._running.get(claim.job.id) is claim:
                    del self._running[claim.job.id]

        return run

    def _begin(self, claim: Claim) -> Claim:
        other = self._running.get(claim.job.id)
        if other is not None and other.written is None:
            self._table.problems.append(f"job {claim.job.id} runs twice at once")
        if claim.body != "not begun":
            self._table.problems.append(f"job {claim.job.id} runs twice for one claim")
        if claim.written is not None:
            self._table.problems.append(f"job {claim.job.id} runs after it was {claim.written}")
        claim.body, claim.body_at = "runs", asyncio.get_running_loop().time()
        self._running[claim.job.id] = claim
        return claim

    async def _quick(self, _ctx: JobContext) -> None:
        pass

    async def _sleepy(self, _ctx: JobContext) -> None:
        await asyncio.sleep(self._rng.choice([0, 0.001, 0.05, 1.0]))

    async def _failing(self, ctx: JobContext) -> None:
        await self._sleepy(ctx)
        raise RuntimeError("boom")

    async def _retrying(self, ctx: JobContext) -> None:
        await self._sleepy(ctx)
        if self._rng.random() < 0.7:
            raise Retry(timedelta(milliseconds=self._rng.choice([0, 5, 200])))

    async def _snoozing(self, ctx: JobContext) -> None:
        await self._sleepy(ctx)
        if self._rng.random() < 0.7:
            raise Snooze(timedelta(milliseconds=self._rng.choice([0, 5, 200])))

    async def _hanging(self, _ctx: JobContext) -> None:
        await self.released.wait()

    async def _tidy(self, _ctx: JobContext) -> None:
        try:
            await self.released.wait()
        finally:
            await asyncio.sleep(self._rng.choice([0, 0.5]))

    async def _stubborn(self, _ctx: JobContext) -> None:
        while not self.released.is_set():
            with suppress(asyncio.CancelledError):
                await self.released.wait()

    async def _polite(self, ctx: JobContext) -> None:
        await ctx.wait_cancelled()

    async def _quitting(self, ctx: JobContext) -> None:
        await self._sleepy(ctx)
        raise asyncio.CancelledError

    async def _limited(self, ctx: JobContext) -> None:
        await asyncio.sleep(self._rng.choice([0.001, 0.199, 5]))

    async def _transacting(self, ctx: JobContext) -> None:
        claim = self._table.claims[int(ctx.job.payload_text)]
        async with ctx.transaction():
            await self._sleepy(ctx)
            claim.body = "commits"


# A run


@dataclass
class Course:
    """How a pool lives and ends; all times in seconds."""

    options: WorkerOptions
    once: bool
    stop: str
    stop_at: float
    force_after: float | None


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
        self._logger = logger_of(None)

    def play(self) -> Played:
        problems = self._loop.run_until_complete(self._play())
        # So that whoever was left without anybody to hear of its error says so.
        gc.collect()
        return Played(problems + self._loop.problems, self._table.history)

    async def _play(self) -> list[str]:
        rng = self._rng
        self._table = TableOfJobs(rng, self._make_weather())
        self._heals = rng.random() < 0.7
        self._kinds = rng.choices(SHORT, k=rng.choice([1, 3, 10]))
        if rng.random() < 0.5:
            self._kinds.append(rng.choice(ENDLESS))
        self._bodies = Bodies(self._table, rng)
        self._pools: list[WorkerPool] = []
        self._table.on_announced = self._announce
        self._add(rng.choice([0, 5, 20, 40, 40, 200]))
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
            pool.nudge(count)

    async def _keep_adding(self) -> None:
        for _ in range(self._rng.randrange(10)):
            await asyncio.sleep(self._rng.random())
            self._add(self._rng.randrange(1, 10))

    def _course(self) -> Course:
        rng = self._rng
        abort_after, stop_after = rng.choice([(5, 25), (None, 1), (1, None), (0.1, 0.2), (2, 1)])
        stop = rng.choice(["graceful", "graceful", "forceful", "finish", "cancel"])
        force_after = rng.choice([None, 0.0, 0.5])
        if stop == "finish" or (stop == "graceful" and stop_after is None):
            # Somebody loses patience, or it would not end.
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
            abort_after=None if abort_after is None else timedelta(seconds=abort_after),
            stop_after=None if stop_after is None else timedelta(seconds=stop_after),
            local_queue=queue,
            complete_batch_delay=rng.choice(delays),
            fail_batch_delay=rng.choice(delays),
        )
        # While nothing runs yet, in the middle of the first steps, or later.
        stop_at = rng.choice([0.0, rng.random() / 20, *(rng.random() * 10 for _ in range(6))])
        return Course(options, rng.random() < 0.2, stop, stop_at, force_after)

    async def _live(self, number: int) -> list[str]:
        course = self._course()
        plan, parts = self._built(f"pool-{number}", course)
        pool: WorkerPool = parts.pool
        self._pools.append(pool)
        life = Life(self, course, pool, self._table)
        plan.hooks.on(JobSucceeded)(lambda event: self._check_success(event, life.problems))
        running = asyncio.create_task(pool.run())
        stopping = asyncio.create_task(life.stop(running))
        error = await life.end_of(running)
        stopping.cancel()
        await life.finish(assembly_module._finish(plan, parts, None, error, None))
        return life.problems

    def _built(self, pool_id: str, course: Course) -> tuple[assembly_module.Blueprint, Any]:
        plan = assembly_module.Blueprint(
            options=course.options,
            tasks=self._bodies.tasks(),
            cron_items=None,
            hooks=Hooks(),
            logger=self._logger,
            lifespan=_nothing,
            forbidden_flags=None,
            migrate=False,
        )
        databases = SimpleNamespace(own=self._table, tasks=self._table, blocking_tasks=None)
        parts: Any = SimpleNamespace(
            lease=Lease(pool_id=pool_id),
            databases=databases,
            client=None,
            blocking_client=None,
            places=Places(Threads(), Children(TaskProcessOptions())),
            has_pool=True,
        )
        parts.pool = assembly_module._pool(plan, parts, None, once=course.once)
        parts.claims.on_reclaimed = parts.pool.drop
        return plan, parts

    def heal(self) -> None:
        if self._heals:
            self._table.heal()

    @property
    def heals(self) -> bool:
        return self._heals

    def _check_success(self, event: JobSucceeded, problems: list[str]) -> None:
        claim = self._table.claims[int(event.job.payload_text)]
        if claim.written != "finished":
            problems.append(f"job {event.job.id} is announced as done and is {claim.written}")


class Life:
    """When a pool is told to stop, and whether it does so as it should."""

    def __init__(self, scene: Scene, course: Course, pool: WorkerPool, table: TableOfJobs) -> None:
        self.problems: list[str] = []
        self._scene = scene
        self._course = course
        self._pool = pool
        self._table = table
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

    async def end_of(self, running: asyncio.Task[None]) -> BaseException | None:
        await asyncio.wait([running])
        self._ended_at = self._loop.time()
        self._table.ending.add(self._pool.id)
        error = None
        if not running.cancelled():
            error = running.exception()
        if error is not None and not (
            self._course.once and isinstance(error, psycopg.Error | TimeoutError)
        ):
            self.problems.append(f"run raised {error!r}")
        self._check_time()
        if self._told_at is None and error is None and self._table.weather.is_calm:
            self._check_nothing_is_ready()
        return error

    async def finish(self, finishing: Awaitable[None]) -> None:
        reported: list[int] = []
        try:
            await finishing
        except JobsLeftLocked as error:
            reported = error.job_ids
        took = self._loop.time() - self._ended_at
        if took > 3 * pool_module.WRITE_WITHIN + SLACK:
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
        if not self._table.weather.is_calm or all(each.holds for each in self._pool._workers):
            return
        patience = self._course.options.poll_interval.total_seconds() + SLACK
        for row in self._table.claimable(self._loop.time() - patience):
            self.problems.append(f"job {row.id} waits beside an idle worker")

    def _check_nothing_is_ready(self) -> None:
        for row in self._table.claimable(self._ended_at - SLACK):
            self.problems.append(f"job {row.id} was left, though it could run once")

    def _longest(self) -> float:
        course = self._course
        if course.stop == "cancel":
            return 2 * worker_module.HAND_BACK_WITHIN
        limits = [course.options.stop_after and course.options.stop_after.total_seconds()]
        if course.stop == "finish":
            limits = []
        limits.append(0.0 if course.stop == "forceful" else course.force_after)
        least = min(each for each in limits if each is not None)
        # Tasks tidy up, and then the source has a moment to hand back what it has.
        return least + 2 * pool_module.TIDY_UP_WITHIN

    def _check_locks(self, reported: list[int]) -> None:
        left = [each for each in self._table.locked if each.pool == self._pool.id]
        if self._scene.heals and self._told_at is not None:
            for claim in left:
                self.problems.append(f"job {claim.job.id} stays locked, its task {claim.body}")
            held = [each for each in self._table.queues.values() if each.pool == self._pool.id]
            for claim in held:
                self.problems.append(f"queue {claim.job.queue} stays locked")
        for claim in left:
            # What was taken by a fetch that nobody heard the answer of, nobody can name.
            if claim.job.id not in reported and claim.body != "not begun":
                self.problems.append(f"job {claim.job.id} stays locked and is not named")

    def _check_starts(self) -> None:
        if self._told_at is None:
            return
        for claim in self._table.claims:
            if claim.pool == self._pool.id and claim.body_at > self._told_at:
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
