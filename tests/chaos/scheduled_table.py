"""A database that is only a table of jobs: it knows who holds what, is slow, and loses answers."""

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import psycopg

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.query import Query

# Seconds after which a statement is given up, as in _db/worker_connections.py.
ANSWER_WITHIN = 10.0


@dataclass
class Claim:
    """That a pool took a job: what its task did, and what was written about it."""

    number: int
    job: "Row"
    pool: str
    at: float
    body: str = "not begun"
    body_at: float = 0.0
    ended_at: float = 0.0
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
    # Start and end of each outage.
    outages: list[tuple[float, float]] = field(default_factory=list)

    @property
    def is_calm(self) -> bool:
        return not (self.unheard or self.unanswered or self.outages) and self.latency < 0.1


class TableOfJobs:
    """Knows who holds what. Each statement happens at one moment, fenced as in SQL."""

    def __init__(self, rng: random.Random, weather: Weather) -> None:
        self.weather = weather
        self.schemas = Schemas.from_names("graphile_worker")
        self.rows: dict[int, Row] = {}
        self.queues: dict[int, Claim] = {}
        self.claims: list[Claim] = []
        self.problems: list[str] = []
        self.history: list[tuple[float, str]] = []
        self.swept: set[str] = set()
        # Pools that have reached the end of their shutdown, where running jobs are released.
        self.ending: set[str] = set()
        self.on_announced: Callable[[int], None] = lambda count: None
        self._rng = rng
        self._numbers = itertools.count(1)
        self._kinds: list[str] = []
        self._queues = ["q1", "q2"]
        self._free_since: dict[int, float] = {}
        self._healed = asyncio.Event()

    # The interface of a database

    async def run(self, query: Query[Any]) -> Any:
        await self._send(query)
        answer = self._carry_out(query)
        await self._wait()
        if self._rng.random() < self.weather.unanswered:
            raise psycopg.OperationalError("the answer got lost")
        return query.read(answer)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """Its changes happen at the commit, whose answer may be lost."""
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

    def sweep(self, pool: str) -> None:
        """Declare a pool dead, and release all its jobs."""
        self.swept.add(pool)
        for claim in [each for each in self.locked if each.pool == pool]:
            claim.written, claim.job.claim = "swept", None
        self._free(pool, list(self.queues))

    def add(self, kind: str, *, queue: str | None, delay: float, priority: int) -> None:
        number = next(self._numbers)
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
            # The server may have received it already.
            if query is not None and self._rng.random() < 0.5:
                self._carry_out(query)
            raise
        if self._rng.random() < self.weather.unheard:
            raise psycopg.OperationalError("connection refused")

    async def _wait(self) -> None:
        await asyncio.sleep(self._rng.random() * self.weather.latency)

    @property
    def _is_out(self) -> bool:
        now = asyncio.get_running_loop().time()
        return any(since <= now < until for since, until in self.weather.outages)

    # What statements do

    def _carry_out(self, query: Query[Any]) -> list[tuple[Any, ...]]:
        args: Any = query.args
        self.history.append((asyncio.get_running_loop().time(), str(query.statement)))
        match query.statement:
            case "register_tasks":
                return []
            case "get_task_ids":
                self._kinds = list(args[0])
                return list(enumerate(self._kinds))
            case "has_fetch_indexes":
                return [(True,)]
            case "check_pauses":
                return [(False, False, False)]
            case "is_pool_alive":
                return [(args[0] not in self.swept,)]
            case "notify_jobs":
                self.on_announced(args[0])
                return []
            case "claim_first_job":
                return self._take_first(*args[:1])
            case "claim_plain_jobs" | "claim_soonest_jobs" | "claim_jobs" | "claim_jobs_unindexed":
                return self._take(query.statement, args)
            case "check_ready_jobs":
                return [(self._has_ready(), len(self.rows) < 21)]
            case "find_orphaned_claims":
                return self._find_unheld(*args)
            case "find_blocked_jobs":
                # Rows that other sessions have locked.
                return [(each,) for each in args[0] if self._rng.random() < self.weather.unheard]
            case "release_orphaned_claims":
                return self._return_unheld(*args)
            case "get_job":
                return self._get(args[0])
            case "complete_claimed_jobs":
                ids = [int(each) for each in args[0].strip("{}").split(",")]
                return self._end("finished", dict.fromkeys(ids), *args[1:])
            case "fail_claimed_jobs" | "release_claimed_jobs":
                how = "failed" if query.statement == "fail_claimed_jobs" else "returned"
                return self._end(how, {each["id"]: each for each in json.loads(args[0])}, *args[1:])
            case other:
                raise AssertionError(f"no answer is defined for {other}")

    def _take_first(self, pool: str) -> list[tuple[Any, ...]]:
        now = asyncio.get_running_loop().time()
        free = [row for row in self.rows.values() if row.claim is None]
        first = min(free, key=lambda row: (row.priority, row.run_at, row.id), default=None)
        if first is None or first.queue or first.run_at > now:
            return []
        due = sum(row.run_at <= now + 0.02 for row in free) if len(free) < 50 else None
        return [(*self._claim(first, pool, now), due, "0")]

    def _take(self, way: str, args: Any) -> list[tuple[Any, ...]]:
        pool, _, _, limit, _, priority, first, *_ = args
        now = asyncio.get_running_loop().time()
        ready = [row for row in self.rows.values() if row.claim is None and row.run_at <= now]
        if priority is not None:
            since = (priority, datetime.fromisoformat(first).timestamp() - 1e-6)
            ready = [row for row in ready if (row.priority, row.run_at) >= since]
        if way == "claim_plain_jobs" and any(row.queue for row in ready):
            return []
        due = None if priority is not None else self._count_due(limit, now)
        taken: list[tuple[Any, ...]] = []
        seen = set(self.queues)
        for row in sorted(ready, key=lambda row: (row.priority, row.run_at, row.id)):
            queue = self._queue_id(row)
            if len(taken) < limit and (queue is None or queue not in seen):
                seen |= set() if queue is None else {queue}
                taken.append(self._claim(row, pool, now))
        if way in ("claim_plain_jobs", "claim_soonest_jobs"):
            # The server searched for no time at all.
            taken = [(*each, due, "0") for each in taken]
        if way == "claim_jobs":
            taken = [(*each, "0", False) for each in taken]
        return taken

    def _count_due(self, limit: int, now: float) -> int | None:
        """Count the jobs that are ready or nearly so, if a fetch reads all jobs."""
        free = [row for row in self.rows.values() if row.claim is None]
        if len(free) >= limit * 5 // 4 + 20:
            return None
        return sum(row.run_at <= now + 0.02 for row in free)

    def _has_ready(self) -> bool:
        now = asyncio.get_running_loop().time()
        return any(
            row.claim is None and row.run_at <= now and self._queue_id(row) not in self.queues
            for row in self.rows.values()
        )

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
            held = [row for row in held if _is_same(row, how, asked[row.id])]
        for row in held:
            self._write(row, how, asked[row.id])
        if held or not again:
            self._free(pool, queues)
        return [(row.id,) for row in held]

    def _get(self, job_id: int) -> list[tuple[Any, ...]]:
        return [(job_id, *[None] * 15)] if job_id in self.rows else []

    def _find_unheld(self, pool: str, known: list[int], queues: list[int]) -> list[tuple[Any, ...]]:
        held = [row.id for row in self.rows.values() if self._holds(pool, row.id)]
        locked = [queue for queue, claim in self.queues.items() if claim.pool == pool]
        jobs = [(each, None) for each in held if each not in known]
        return jobs + [(None, each) for each in locked if each not in queues]

    def _return_unheld(
        self,
        pool: str,
        found: list[int],
        found_queues: list[int],
        known: list[int],
        queues: list[int],
    ) -> list[tuple[Any, ...]]:
        rows = [self.rows[each] for each in found if self._holds(pool, each)]
        returned = [row for row in rows if row.id not in known]
        for row in returned:
            self._write(row, "returned", {})
        self._free(pool, [each for each in found_queues if each not in queues])
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
        if claim.pool in self.swept and claim.body == "not begun":
            # Claimed by a fetch that was in progress when its pool was recovered, so it does not
            # run. A late end of the claim before may meet it.
            return
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


def _is_same(row: Row, how: str, asked: Any) -> bool:
    """Is it still the attempt that a failure is about? As fail_claimed_jobs.sql asks."""
    return how != "failed" or row.attempts == asked["attempts"]


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
