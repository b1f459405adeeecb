"""How long a job that a pool has fetched waits there before it starts.

Two pools, each a process of its own: one whose tasks take as long as they should, and one that is
ten times as slow. Piles of jobs are worked off, one after the other, and each time the end of the
pile shows who still holds jobs while the other has nothing to do. The pools tell of each job when
it was taken, began and ended; every 20 ms the database is asked which jobs are held, so that those
which are handed back unstarted are seen too.
"""

import random
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import click
import psycopg

from benchmarks.contenders.ours import Ours
from benchmarks.processes import Program, environment, running
from benchmarks.rounds import rounded
from benchmarks.server import Database, Server
from graphile_worker._bench.stats import summarize

CONCURRENCY = 10
SLOWNESS = {"fast": 1, "slow": 10}
PILES = 3
EVERY = 0.02

# A fetched job may wait so long, in seconds.
LIMIT = 0.15

INDEX = """
    create index bench_held on graphile_worker._private_jobs (locked_at) include (id, locked_by)
    where locked_at is not null
"""
ADD = """
    with task as (
      insert into graphile_worker._private_tasks (identifier) values ('sleep')
      on conflict (identifier) do update set identifier = excluded.identifier
      returning id
    )
    insert into graphile_worker._private_jobs (task_id, payload)
    select task.id, json_build_object('seconds', seconds)
    from task, unnest(%s::float[]) with ordinality as listed (seconds, number)
    order by number
"""
HELD = """
    select id, locked_by, extract(epoch from locked_at)::float
    from graphile_worker._private_jobs where locked_at is not null
"""
READY = """
    select exists (
      select from graphile_worker._private_jobs where is_available and run_at <= now()
    )
"""
LEFT = "select exists (select from graphile_worker._private_jobs)"


@dataclass(frozen=True, slots=True)
class Kind:
    """Jobs of some length, and how many of them are in a pile."""

    name: str
    seconds: tuple[float, ...]
    jobs: int

    def pile(self) -> list[float]:
        """Where lengths differ, in an order that is always the same and nobody can guess."""
        return random.Random(self.name).choices(self.seconds, k=self.jobs)


KINDS = (
    Kind("1 ms", (0.001,), 6000),
    Kind("10 ms", (0.01,), 3000),
    Kind("1 s", (1.0,), 40),
    # Of twenty jobs, sixteen are short, three are longer, and one is long.
    Kind("mixed", (*[0.001] * 16, *[0.01] * 3, 1.0), 600),
)


@dataclass(frozen=True, slots=True)
class Run:
    """A job that ran: when it was taken, began and ended."""

    job: int
    taken: float
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Sample:
    """A look into the database: is any job ready, and which are held, by whom and since when?"""

    at: float
    is_ready: bool
    held: tuple[tuple[int, str, float], ...]


@dataclass(slots=True)
class Pool:
    """What one of the pools told."""

    name: str
    id: str = ""
    runs: list[Run] = field(default_factory=list)

    def hear(self, program: Program) -> None:
        for said in program.lines():
            self.id = said.get("pool", self.id)
            self.runs += [Run(*each) for each in said.get("ran", ())]


def waiting(server: Server, *, local_queue: int | None = None) -> dict[str, Any]:
    found = {}
    for kind in KINDS:
        found[kind.name] = judged(*_observed(server, kind, local_queue))
        short = {key: value for key, value in found[kind.name].items() if key != "pools"}
        click.echo(f"{kind.name}: {short}", err=True)
    settings = {"concurrency": CONCURRENCY, "slowness": SLOWNESS["slow"], "piles": PILES}
    if local_queue is not None:
        settings["local_queue"] = local_queue
    return {"settings": settings, "kinds": found}


def judged(pools: Sequence[Pool], samples: Sequence[Sample]) -> dict[str, Any]:
    """How long jobs waited, and when somebody held too much."""
    waits = {pool.name: [run.began - run.taken for run in pool.runs] for pool in pools}
    every = summarize([wait for each in waits.values() for wait in each])
    wrong = list(violations(pools, samples))
    unstarted = _unstarted(pools, samples)
    return {
        "jobs": sum(map(len, waits.values())),
        "p50_ms": rounded(every.p50 * 1000),
        "p99_ms": rounded(every.p99 * 1000),
        "max_ms": rounded(every.maximum * 1000),
        "samples": len(samples),
        "violations": len(wrong),
        "worst_violation_ms": rounded(max(wrong, default=0.0) * 1000),
        "handed_back": len(unstarted),
        "handed_back_after_ms": rounded(max(unstarted, default=0.0) * 1000),
        "pools": {name: _waits(each) for name, each in waits.items()},
    }


def violations(pools: Sequence[Pool], samples: Sequence[Sample]) -> Iterator[float]:
    """For each moment at which a pool idled while another held jobs for too long: how long.

    A pool idles if it had room for a job at this look and at the one before, with no job ready in
    the database either time: what is ready it could have taken.
    """
    timelines = [Timeline(pool) for pool in pools]
    for before, now in zip(samples, samples[1:], strict=False):
        if before.is_ready or now.is_ready:
            continue
        for mine in timelines:
            is_idle = mine.running(before.at) < CONCURRENCY > mine.running(now.at)
            others = [each for each in timelines if each is not mine]
            longest = max((other.longest_wait(now) for other in others), default=0.0)
            if is_idle and longest > LIMIT:
                yield longest


class Timeline:
    """What a pool did at any moment, from what it told afterwards."""

    def __init__(self, pool: Pool) -> None:
        self._id = pool.id
        self._began = sorted(run.began for run in pool.runs)
        self._ended = sorted(run.ended for run in pool.runs)
        self._began_of = {run.job: run.began for run in pool.runs}

    def running(self, at: float) -> int:
        return bisect_right(self._began, at) - bisect_right(self._ended, at)

    def longest_wait(self, sample: Sample) -> float:
        """Of the jobs that it held then and had not begun."""
        waits = (
            sample.at - taken
            for job, pool, taken in sample.held
            if pool == self._id and self._began_of.get(job, sample.at + 1) > sample.at
        )
        return max(waits, default=0.0)


def _unstarted(pools: Sequence[Pool], samples: Sequence[Sample]) -> list[float]:
    """How long jobs were held that did not run then, as far as samples show."""
    ran = {(run.job, round(run.taken, 6)) for pool in pools for run in pool.runs}
    held: dict[tuple[int, float], float] = {}
    for sample in samples:
        for job, _, taken in sample.held:
            held[job, round(taken, 6)] = sample.at - taken
    return [seconds for key, seconds in held.items() if key not in ran]


def _waits(waits: Sequence[float]) -> dict[str, Any]:
    if not waits:
        return {"jobs": 0}
    found = summarize(waits)
    return {
        "jobs": len(waits),
        "p50_ms": rounded(found.p50 * 1000),
        "p99_ms": rounded(found.p99 * 1000),
        "max_ms": rounded(found.maximum * 1000),
    }


def _observed(
    server: Server, kind: Kind, local_queue: int | None
) -> tuple[list[Pool], list[Sample]]:
    contender = Ours()
    pools = [Pool(name) for name in SLOWNESS]
    with server.database(contender.kind, contender.install) as database, ExitStack() as stack:
        watcher = stack.enter_context(database.connected())
        watcher.execute(INDEX)
        watcher.execute("set enable_seqscan = off")
        for pool in pools:
            stack.enter_context(_started(database, pool, local_queue))
        samples: list[Sample] = []
        for _ in range(PILES):
            watcher.execute(ADD, (kind.pile(),))
            samples += _sampled(watcher)
            # Until all of it is told.
            time.sleep(1)
    return pools, samples


def _started(database: Database, pool: Pool, local_queue: int | None) -> ExitStack:
    """A pool that runs and is heard for as long as the stack is open."""
    told = environment(database, concurrency=CONCURRENCY)
    told["BENCH_SLOWNESS"] = str(SLOWNESS[pool.name])
    if local_queue is not None:
        told["BENCH_LOCAL_QUEUE"] = str(local_queue)
    stack = ExitStack()
    command = [sys.executable, "-m", "benchmarks.programs.sleepers"]
    program = stack.enter_context(running(command, told))
    pool.id = program.wait_for_line("pool")["pool"]
    ear = threading.Thread(target=pool.hear, args=(program,), daemon=True)
    ear.start()
    # It ends with the program, so that nothing is left unheard.
    stack.callback(ear.join)
    stack.callback(program.kill)
    return stack


def _sampled(watcher: psycopg.Connection) -> Iterator[Sample]:
    """Every 20 ms until no job is left."""
    due = time.monotonic()
    while True:
        held = tuple(watcher.execute(HELD).fetchall())
        at = time.time()
        yield Sample(at, _truth(watcher, READY), held)
        if not held and not _truth(watcher, LEFT):
            return
        due = max(due + EVERY, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))


def _truth(watcher: psycopg.Connection, question: str) -> bool:
    row = watcher.execute(question.encode()).fetchone()
    return row == (True,)
