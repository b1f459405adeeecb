"""Enqueuers that record each call and its outcome, as the clients of Jepsen do."""

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from graphile_worker import JobKeyMode, JobSpec, sync
from graphile_worker.errors import JobSpecError
from tests.laboratory.history_checker import Add, Journal, Step

QUEUES = [f"queue-{number}" for number in range(20)]
KEYS = [f"key-{number}" for number in range(100)]
KEPT_KEYS = KEYS[::2]

# Tasks that keep nothing, and the same with results.
KEPT_INSTEAD = {"work": "keep", "work_in_thread": "keep_in_thread"}

# The tasks that keep their results and attempts.
KEEPING_TASKS = ("keep", "keep_in_thread", "stumble", "pay")

# The tasks that share a limit in scenarios with one.
LIMITED_TASKS = frozenset({"limited", "limited_in_thread"})

ENQUEUERS = 4

# Seconds that an enqueuer waits after the database did not answer.
RETRY_DELAY_SECONDS = 0.2

Draw = Callable[[random.Random], JobSpec]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The number of jobs, their rate per second, and the threads that add them."""

    jobs: int
    rate: float
    threads: int = ENQUEUERS
    seed: int = 0


class Load:
    """Adds jobs until the planned number is acknowledged, through any number of outages."""

    def __init__(self, dsn: str, schema: str, folder: Path, plan: Plan, draw: Draw) -> None:
        self._dsn = dsn
        self._schema = schema
        self._folder = folder
        self._plan = plan
        self._draw = draw
        self._counting = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, args=(number,), daemon=True)
            for number in range(plan.threads)
        ]
        self._stop = threading.Event()
        self.acknowledged = 0

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    @property
    def is_done(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        name = f"add-{number}"
        enqueuer = Enqueuer(name, f"{self._dsn} application_name={name}", self._schema)
        enqueuer.journal = Journal(self._folder / f"{name}.jsonl")
        rng = random.Random(self._plan.seed * 1000 + number)
        began, added = time.monotonic(), 0
        while self.acknowledged < self._plan.jobs and not self._stop.is_set():
            specs = self._drawn(rng)
            if enqueuer.add(specs):
                with self._counting:
                    self.acknowledged += len(specs)
            else:
                self._stop.wait(RETRY_DELAY_SECONDS)
            added += len(specs)
            # After an outage, jobs are added without a pause until the schedule is met.
            due = began + added * self._plan.threads / self._plan.rate
            self._stop.wait(max(0.0, due - time.monotonic()))
        enqueuer.close()

    def _drawn(self, rng: random.Random) -> list[JobSpec]:
        first = self._draw(rng)
        if first.job_key is not None:
            # A call with a key adds one job.
            return [first]
        others = (self._draw(rng) for _ in range(rng.choice((0, 0, 0, 4, 19))))
        return [first, *(spec for spec in others if spec.job_key is None)]


class Enqueuer:
    """One client. After a call without an answer it opens a new connection."""

    journal: Journal
    # The position of the server's log; None where the run does not need it.
    position: Callable[[], float | None]

    def __init__(self, name: str, dsn: str, schema: str) -> None:
        self._name = name
        self._dsn = dsn
        self._schema = schema
        self._calls = 0
        self._client: sync.Client | None = None
        self.position = lambda: None

    def add(self, specs: list[JobSpec]) -> bool:
        """Add jobs in one call; return False if the outcome is unknown."""
        self._calls += 1
        call = f"{self._name}:{self._calls}"
        tokens = tuple(f"{call}:{at}" for at in range(len(specs)))
        key, mode = specs[0].job_key, str(specs[0].job_key_mode or "replace")
        began = Add(
            "invoke",
            call,
            time.time(),
            tokens=tokens,
            key=key,
            key_mode=mode,
            position=self.position(),
        )
        self.journal.note(began)
        step, job_ids = self._added([_marked(*each) for each in zip(specs, tokens, strict=True)])
        ended = replace(began, step=step, at=time.time(), job_ids=job_ids)
        self.journal.note(replace(ended, position=self.position()))
        return step != "info"

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _added(self, specs: list[JobSpec]) -> tuple[Step, tuple[int, ...]]:
        try:
            client = self._client = self._client or sync.Client(self._dsn, schema=self._schema)
            jobs = [client.add_spec(specs[0])] if len(specs) == 1 else client.add_jobs(specs)
        except JobSpecError:
            return "fail", ()
        except Exception:
            # The answer may be lost, and not the request.
            self.close()
            return "info", ()
        return "ok", tuple(job.id for job in jobs)


def _marked(spec: JobSpec, token: str) -> JobSpec:
    return replace(spec, payload={**(spec.payload or {}), "token": token})


# Kinds of jobs


def drawn(rng: random.Random) -> JobSpec:
    """Draw a job of any kind."""
    kinds = (plain, queued, keyed, delayed, failing, in_thread, paid, failing_in_queue)
    return rng.choices(kinds, (40, 20, 10, 8, 8, 6, 5, 3))[0](rng)


def kept(rng: random.Random) -> JobSpec:
    """Draw a job of any kind. Four of five keep their result."""
    spec = drawn(rng)
    if spec.job_key is None and spec.identifier in KEPT_INSTEAD and rng.random() < 0.6:
        return replace(spec, identifier=KEPT_INSTEAD[spec.identifier])
    return spec


def limited(rng: random.Random) -> JobSpec:
    """Draw a job of any kind. Two of three have a limit."""
    spec = drawn(rng)
    if spec.job_key is not None or spec.identifier == "stumble" or rng.random() < 0.2:
        return spec
    task = "limited_in_thread" if rng.random() < 0.2 else "limited"
    # In a queue of its own tasks: a job that waits for a slot does not hold up other tasks.
    queue = spec.queue_name and f"limited-{spec.queue_name}"
    payload = {"seconds": _seconds(rng)}
    return replace(spec, identifier=task, payload=payload, queue_name=queue)


def plain(rng: random.Random) -> JobSpec:
    return JobSpec(_task(rng), {"seconds": _seconds(rng)}, priority=rng.randrange(-2, 3))


def queued(rng: random.Random) -> JobSpec:
    return JobSpec(_task(rng), {"seconds": _seconds(rng) / 5}, queue_name=rng.choice(QUEUES))


def keyed(rng: random.Random) -> JobSpec:
    mode = rng.choice(list(JobKeyMode))
    delay = timedelta(milliseconds=rng.choice((0, 500, 3000)))
    payload = {"seconds": _seconds(rng)}
    key = rng.choice(KEYS)
    # A job that gets another payload keeps its task.
    task = "keep" if key in KEPT_KEYS else "work"
    return JobSpec(task, payload, job_key=key, job_key_mode=mode, run_at=delay)


def delayed(rng: random.Random) -> JobSpec:
    return JobSpec(_task(rng), {}, run_at=timedelta(seconds=rng.random() * 5))


def failing(rng: random.Random) -> JobSpec:
    return JobSpec("stumble", {"times": rng.choice((1, 1, 2, 30))}, max_attempts=4)


def in_thread(rng: random.Random) -> JobSpec:
    return JobSpec(rng.choice(("work_in_thread", "keep_in_thread")), {"seconds": _seconds(rng)})


def paid(rng: random.Random) -> JobSpec:
    return JobSpec("pay", {})


def failing_in_queue(rng: random.Random) -> JobSpec:
    return JobSpec("stumble", {"times": 1}, queue_name=rng.choice(QUEUES))


def _task(rng: random.Random) -> str:
    """Draw a task that keeps its results, or one that keeps nothing."""
    return rng.choice(("work", "keep"))


def _seconds(rng: random.Random) -> float:
    return rng.choice((0.0, 0.0, 0.0, 0.01, 0.05, 0.3))
