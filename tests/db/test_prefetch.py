"""Jobs that are fetched ahead by time, the default: many when they are short, none when not."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from graphile_worker import Hooks, JobContext, JobSpec, Runner, WorkerOptions
from graphile_worker._worker.claimer import ClaimTimings
from graphile_worker._worker.sources.prefetch import MAX_FETCH, PrefetchTimings
from graphile_worker._worker_config import WorkerTimings
from graphile_worker.events import (
    GetJobEmpty,
    JobStarted,
    JobSucceeded,
    ListenStarted,
    LocalQueueFetched,
    LocalQueueReturned,
)
from tests.support.recorder import Recorder, wait_until
from tests.support.sql import Sql
from tests.support.tasks import Gate, nothing
from tests.support.tiers import size
from tests.support.timings import DEFAULT_TIMINGS, set_timings

# What Python does: test_statements.py runs each statement on the oldest pair too.
pytestmark = pytest.mark.single_version

HOUR = timedelta(hours=1)

LEFT = "select count(*)::int from :schema._private_jobs"
PAYLOADS = """
select (payload ->> 'n')::int, attempts, locked_by is not null
from :schema._private_jobs order by 1
"""
# Of jobs, and of named queues.
LOCKS = """
select
  (select count(*)::int from :schema._private_jobs where locked_by is not null),
  (select count(*)::int from :schema._private_job_queues where locked_by is not null)
"""
NOTHING_LOCKED = [(0, 0)]

# Jobs that wait are kept, and each scan begins with the first job, on a busy machine too.
NOTHING_LATE = WorkerTimings(prefetch=PrefetchTimings(max_buffered_seconds=3600.0))
NOTHING_SLOW = replace(NOTHING_LATE, claim=ClaimTimings(slow_scan_seconds=3600.0))


@pytest.fixture
def client(async_client):
    return async_client


@pytest.fixture
def once(database) -> Callable[..., Any]:
    """Run what is ready with the default source; how many jobs that were."""

    async def once(
        tasks: Any,
        *,
        concurrency: int = 1,
        timings: WorkerTimings = DEFAULT_TIMINGS,
        **live: Any,
    ) -> int:
        options = WorkerOptions(schema=database.schema, concurrency=concurrency)
        runner = Runner(database.dsn, tasks, options=options, **live)
        return await set_timings(runner, timings).run_once()

    return once


def tiny(count: int) -> list[JobSpec]:
    return [JobSpec("tiny", {"n": n}) for n in range(count)]


def in_turn(number: int) -> timedelta:
    """When a job is due, so that those with lower numbers come before it."""
    return timedelta(seconds=number - 10_000)


class Behind:
    """Jobs that were fetched ahead while jobs were short, and now wait behind slow ones."""

    def __init__(self, gate: Gate, recorder: Recorder, *, workers: int) -> None:
        self.ran: list[int] = []
        self._gate = gate
        self._recorder = recorder
        self._workers = workers
        self.tasks = {"tiny": nothing, "slow": gate.pass_through, "waits": self._run}

    async def _run(self, payload: dict[str, int]) -> None:
        self.ran.append(payload["n"])

    def specs(self, count: int, **more: Any) -> list[JobSpec]:
        slow = [JobSpec("slow", {"n": n}, priority=1) for n in range(self._workers)]
        waits = [JobSpec("waits", {"n": n}, priority=2, **more) for n in range(count)]
        return [*tiny(3000), *slow, *waits]

    async def fetched(self, count: int) -> None:
        """Until all workers are busy with slow jobs and those behind them are here."""
        await self._recorder.wait_for(LocalQueueFetched)
        await wait_until(lambda: len(self._gate.began) == self._workers)
        await wait_until(lambda: self._fetched() >= count)

    def _fetched(self) -> int:
        batches = self._recorder.events_of(LocalQueueFetched)
        return sum(job.task_identifier == "waits" for each in batches for job in each.jobs)

    def returned(self) -> set[int]:
        batches = self._recorder.events_of(LocalQueueReturned)
        jobs = [job for each in batches for job in each.jobs]
        return {job.payload["n"] for job in jobs if job.task_identifier == "waits"}


# How many at once


# Fetches for 8000 jobs; a busy machine makes jobs look slow.
MOST_FETCHES = size(gate=333, nightly=200)


@pytest.mark.feature("F98")
async def test_tiny_jobs_are_fetched_hundreds_at_once(client, once, figure):
    await client.add_jobs(tiny(8000))
    hooks, sizes, returned = Hooks(), list[int](), list[int]()
    hooks.on(LocalQueueFetched)(lambda event: sizes.append(len(event.jobs)))
    hooks.on(LocalQueueReturned)(lambda event: returned.append(len(event.jobs)))

    assert await once({"tiny": nothing}, concurrency=24, hooks=hooks) == 8000

    figure(f"8000 tiny jobs in {len(sizes)} fetches of up to {max(sizes)}")
    # Some go back, to be fetched again, when the machine stands still with jobs at hand.
    assert sum(sizes) - sum(returned) == 8000
    assert 3 * 24 < max(sizes) <= MAX_FETCH
    # For those who ask alone there would be 333 at least.
    assert len(sizes) < MOST_FETCHES


@pytest.mark.feature("F98")
@pytest.mark.parametrize("seconds", [0.12, 0.3])
async def test_of_slow_jobs_no_more_are_held_than_workers_run(client, once, seconds):
    await client.add_jobs(tiny(24))
    hooks, fetched, ended, most = Hooks(), 0, 0, 0

    @hooks.on(LocalQueueFetched)
    def count(event: LocalQueueFetched) -> None:
        nonlocal fetched, most
        fetched += len(event.jobs)
        most = max(most, fetched - ended)

    async def slow(payload: dict[str, int]) -> None:
        nonlocal ended
        # They end one shortly after the other.
        await asyncio.sleep(seconds + payload["n"] % 4 * 0.004)
        ended += 1

    assert await once({"tiny": slow}, concurrency=4, hooks=hooks) == 24

    assert most == 4
    assert fetched == 24


@pytest.mark.feature("F98")
async def test_when_jobs_become_slow_nothing_more_is_fetched_ahead(
    start, client, recorder, gate, sql
):
    behind = Behind(gate, recorder, workers=2)
    await start(behind.tasks, concurrency=2, poll_interval=HOUR)
    await client.add_jobs(behind.specs(5))
    await behind.fetched(5)

    await wait_until(lambda: behind.returned() == {0, 1, 2, 3, 4})
    await client.add_jobs([JobSpec("waits", {"n": n}, priority=2) for n in range(5, 50)])
    # It hears of them; so long, it would fetch them several times over.
    await asyncio.sleep(0.3)

    assert sql.run(LOCKS) == [(2, 0)]
    assert behind.ran == []
    gate.open()
    await wait_until(lambda: sorted(behind.ran) == list(range(50)))


# What waits behind slow jobs


@pytest.mark.feature("F98")
async def test_a_job_that_waits_behind_slow_ones_is_released_with_its_attempt(
    start, client, recorder, gate, sql
):
    behind = Behind(gate, recorder, workers=2)
    await client.add_jobs(behind.specs(5))

    await start(behind.tasks, concurrency=2, poll_interval=HOUR)
    await behind.fetched(5)
    await wait_until(lambda: behind.returned() == {0, 1, 2, 3, 4})
    await wait_until(lambda: sql.value(LEFT) == 7)

    assert sql.run(LOCKS) == [(2, 0)]
    attempts = "select distinct attempts from :schema._private_jobs where priority = 2"
    assert sql.run(attempts) == [(0,)]


@pytest.mark.feature("F98")
async def test_a_job_that_waits_behind_slow_ones_runs_in_another_pool_after_a_notification(
    start, client, recorder, gate, figure
):
    # Nobody polls, and the other pool leaves these jobs alone until the first one has them.
    forbidden = ["later"]
    behind = Behind(gate, recorder, workers=2)
    other = Recorder()
    began: list[float] = []
    await start(
        {"waits": behind._run},
        hooks=other.hooks,
        forbidden_flags=lambda: list(forbidden),
        poll_interval=HOUR,
    )
    await other.wait_for(ListenStarted)
    await other.wait_for(GetJobEmpty)

    @recorder.hooks.on(LocalQueueFetched)
    def allow(event: LocalQueueFetched) -> None:
        if any(job.task_identifier == "waits" for job in event.jobs):
            forbidden.clear()
            began.append(time.monotonic())

    await client.add_jobs(behind.specs(1, flags=["later"]))
    await start(behind.tasks, concurrency=2, poll_interval=HOUR)

    [done] = await other.wait_for(JobSucceeded)
    figure(f"fetched by a busy pool, run by another after {time.monotonic() - began[0]:.2f} s")
    assert done.job.attempts == 1
    assert behind.returned() == {0}
    # On a machine that pauses, the slow jobs are late too, and begin afterwards.
    await wait_until(lambda: len(gate.began) == 2)


@pytest.mark.feature("F98")
@pytest.mark.parametrize("listen", [True, False])
async def test_a_released_job_is_found_by_the_next_free_worker(
    start, client, recorder, gate, listen
):
    behind = Behind(gate, recorder, workers=1)
    await client.add_jobs(behind.specs(5))
    await start(behind.tasks, concurrency=1, poll_interval=HOUR, listen=listen)
    await behind.fetched(5)
    await wait_until(lambda: behind.returned() == {0, 1, 2, 3, 4})

    gate.open()

    await wait_until(lambda: sorted(behind.ran) == [0, 1, 2, 3, 4])


@pytest.mark.feature("F98")
async def test_a_keyed_job_can_be_replaced_a_moment_after_it_was_fetched(
    start, client, recorder, gate, sql
):
    behind = Behind(gate, recorder, workers=1)
    await client.add_jobs([*behind.specs(0), JobSpec("waits", {"n": 1}, priority=2, job_key="k")])
    await start(behind.tasks, concurrency=1, poll_interval=HOUR)
    await behind.fetched(1)
    await wait_until(lambda: behind.returned() == {1})

    await client.add_job("waits", {"n": 2}, priority=2, job_key="k")
    # Of those with its priority; endings of the tiny ones may still be under way.
    assert sql.value("select count(*)::int from :schema._private_jobs where priority = 2") == 1
    gate.open()

    await wait_until(lambda: behind.ran)
    await wait_until(lambda: sql.value(LEFT) == 0)
    assert behind.ran == [2]


@pytest.mark.single_version
@pytest.mark.feature("F98")
async def test_a_keyed_job_that_is_replaced_while_it_waits_is_gone(
    start, client, recorder, gate, sql
):
    # Time to replace it.
    timings = WorkerTimings(prefetch=PrefetchTimings(max_buffered_seconds=8.0))
    behind = Behind(gate, recorder, workers=1)
    first = JobSpec("waits", {"n": 1}, priority=2, job_key="k", max_attempts=3)
    await client.add_jobs([*behind.specs(0), first])
    await start(behind.tasks, concurrency=1, poll_interval=HOUR, timings=timings)
    await behind.fetched(1)

    await client.add_job("waits", {"n": 2}, priority=2, job_key="k")
    # The other one too, if it was fetched ahead.
    await wait_until(lambda: 1 in behind.returned())
    gate.open()

    await wait_until(lambda: behind.ran)
    await wait_until(lambda: sql.value(LEFT) == 0)
    assert behind.ran == [2]


# All of them, each once, in order


@pytest.mark.single_version
@pytest.mark.feature("F98", "F99")
@pytest.mark.timeout(60)
async def test_jobs_of_many_named_queues_run_one_at_a_time_in_each(client, once, sql):
    await client.add_jobs(
        [
            JobSpec("work", {"n": n}, queue_name=f"queue {n % 300}", run_at=in_turn(n))
            for n in range(3000)
        ]
    )
    order: dict[int, list[int]] = {queue: [] for queue in range(300)}
    running: Counter[int] = Counter()
    most = 0

    async def work(payload: dict[str, int]) -> None:
        nonlocal most
        queue = payload["n"] % 300
        running[queue] += 1
        most = max(most, running[queue])
        await asyncio.sleep(0)
        running[queue] -= 1
        order[queue].append(payload["n"])

    assert await once({"work": work}, concurrency=8) == 3000

    assert most == 1
    assert order == {queue: list(range(queue, 3000, 300)) for queue in range(300)}
    assert sql.value(LEFT) == 0
    assert sql.run(LOCKS) == NOTHING_LOCKED


@pytest.mark.feature("F98")
async def test_two_pools_run_each_job_once_and_of_a_named_queue_one_at_a_time(
    start, client, recorder, sql
):
    ran: Counter[int] = Counter()
    running: Counter[int] = Counter()
    most = 0

    async def work(payload: dict[str, int]) -> None:
        nonlocal most
        queue = payload["n"] % 20
        running[queue] += 1
        most = max(most, running[queue]) if queue < 5 else most
        await asyncio.sleep(0)
        running[queue] -= 1
        ran[payload["n"]] += 1

    for _ in range(2):
        await start({"work": work}, concurrency=8, poll_interval=timedelta(milliseconds=100))
    await client.add_jobs(
        [
            JobSpec("work", {"n": n}, queue_name=f"queue {n % 20}" if n % 20 < 5 else None)
            for n in range(1000)
        ]
    )
    await recorder.wait_for(JobSucceeded, count=1000)

    assert ran == Counter(range(1000))
    assert most == 1
    assert sql.value(LEFT) == 0


@pytest.mark.feature("F98")
@pytest.mark.parametrize("concurrency", [1, 8])
async def test_once_runs_all_that_jobs_add_to_the_last_one(client, once, sql, concurrency):
    ran: list[int] = []
    await client.add_jobs([JobSpec("work", {"n": 1})] * 10)

    async def work(payload: dict[str, int], ctx: JobContext) -> None:
        ran.append(payload["n"])
        if payload["n"] < 15:
            named = f"queue {payload['n']}" if payload["n"] % 3 == 0 else None
            await ctx.add_job("work", {"n": payload["n"] + 1}, queue_name=named)

    assert await once({"work": work}, concurrency=concurrency) == 150

    assert Counter(ran) == Counter(dict.fromkeys(range(1, 16), 10))
    assert sql.value(LEFT) == 0


async def test_once_runs_one_chain_of_tiny_and_slow_jobs_to_its_end(client, once, sql):
    ran: list[int] = []
    await client.add_job("work", {"n": 0})

    async def work(payload: dict[str, int], ctx: JobContext) -> None:
        ran.append(payload["n"])
        await asyncio.sleep(0.15 if payload["n"] % 4 == 0 else 0)
        if payload["n"] < 12:
            await ctx.add_job("work", {"n": payload["n"] + 1})

    assert await once({"work": work}, concurrency=4) == 13

    assert ran == list(range(13))
    assert sql.value(LEFT) == 0


@pytest.mark.feature("F98")
async def test_one_worker_runs_jobs_in_order_of_priority_and_then_of_time(client, once):
    wanted = [(n * 7919 % 41 - 20, n) for n in range(2000)]
    await client.add_jobs(
        [JobSpec("see", {"at": [each, n]}, priority=each, run_at=in_turn(n)) for each, n in wanted],
    )
    seen: list[tuple[int, int]] = []

    async def see(payload: dict[str, list[int]]) -> None:
        priority, number = payload["at"]
        seen.append((priority, number))

    assert await once({"see": see}, timings=NOTHING_LATE) == 2000

    assert seen == sorted(wanted)


@pytest.mark.feature("F98")
async def test_an_urgent_job_overtakes_those_that_were_fetched_before_it(client, once):
    await client.add_jobs(tiny(3000))
    hooks, seen = Hooks(), list[int]()
    # How many had run, and what came then.
    fetches: list[tuple[int, set[int]]] = []

    @hooks.on(LocalQueueFetched)
    def note(event: LocalQueueFetched) -> None:
        fetches.append((len(seen), {job.payload["n"] for job in event.jobs}))

    async def work(payload: dict[str, int], ctx: JobContext) -> None:
        seen.append(payload["n"])
        if len(seen) == 1000:
            await ctx.add_job("tiny", {"n": -1}, priority=-1)
            fetches.clear()

    assert await once({"tiny": work}, hooks=hooks, timings=NOTHING_SLOW) == 3001

    # One fetch may have been under way.
    place, had_run = next((place, ran) for place, (ran, jobs) in enumerate(fetches) if -1 in jobs)
    assert place <= 1
    assert seen[had_run] == -1
    assert sorted(seen) == list(range(-1, 3000))


# Flags


@pytest.mark.feature("F237")
async def test_a_flag_that_is_forbidden_while_jobs_run_keeps_those_from_starting_that_wait(
    start, client, recorder, sql
):
    slots = 1
    forbidden: list[str] = []
    ran: list[int] = []

    async def work(payload: dict[str, int]) -> None:
        ran.append(payload["n"])
        if len(ran) == 300:
            forbidden.append("slow")

    flagged = set(range(1, 1000, 2))
    await client.add_jobs(
        [JobSpec("work", {"n": n}, flags=["slow"] if n in flagged else None) for n in range(1000)]
    )
    await start(
        {"work": work},
        concurrency=slots,
        forbidden_flags=lambda: list(forbidden),
        poll_interval=HOUR,
    )
    await wait_until(lambda: len(set(ran) - flagged) == 500)
    await wait_until(lambda: sql.run(LOCKS) == NOTHING_LOCKED)

    assert flagged & set(ran[:300])
    # But for what a fetch that was under way by then brings to those who wait for it.
    assert len(flagged & set(ran[300:])) <= slots
    assert sql.run(PAYLOADS) == [(n, 0, False) for n in sorted(flagged - set(ran))]


# Letting go


@pytest.mark.feature("F98", "F295")
@pytest.mark.parametrize("way", ["stop", "kill"])
@pytest.mark.parametrize("concurrency", [1, 8])
async def test_nothing_is_left_locked_when_it_ends_in_the_middle(
    start, client, sql, way, concurrency
):
    ran: Counter[int] = Counter()
    middle = asyncio.Event()

    async def work(payload: dict[str, int]) -> None:
        ran[payload["n"]] += 1
        if len(ran) == 700:
            middle.set()
        await asyncio.sleep(0)

    await client.add_jobs(
        [
            JobSpec("work", {"n": n}, queue_name=f"queue {n}" if n % 10 == 0 else None)
            for n in range(5000)
        ]
    )
    runner = await start({"work": work}, concurrency=concurrency, hooks=Hooks())
    await middle.wait()
    await (runner.stop() if way == "stop" else runner.kill())

    assert sql.run(LOCKS) == NOTHING_LOCKED
    left = sql.run(PAYLOADS)
    assert len(left) > 0
    # Whoever did not run has its attempt back.
    assert {attempts for _, attempts, _ in left} == {0}
    if way == "stop":
        assert len(ran) + len(left) == 5000
    assert set(range(5000)) == set(ran) | {n for n, _, _ in left}
    assert max(ran.values()) == 1


@pytest.mark.feature("F98")
async def test_a_stop_releases_waiting_jobs_before_slow_ones_end(
    start, client, recorder, gate, sql
):
    behind = Behind(gate, recorder, workers=2)
    await client.add_jobs(behind.specs(5))
    runner = await start(behind.tasks, concurrency=2, poll_interval=HOUR, timings=NOTHING_LATE)
    await behind.fetched(5)
    assert sql.run(LOCKS)[0][0] >= 7

    stopping = asyncio.create_task(runner.stop())
    await wait_until(lambda: behind.returned() == {0, 1, 2, 3, 4})
    await wait_until(lambda: sql.run(LOCKS) == [(2, 0)])
    gate.open()
    await stopping

    assert sql.run(PAYLOADS) == [(n, 0, False) for n in range(5)]
    assert len(recorder.events_of(JobStarted)) == 3002


# Batches are on by default


@pytest.mark.feature("F292", "F293", "F295")
async def test_jobs_that_succeed_and_fail_are_all_written_by_default(client, once, sql):
    # Once: the run may last until they would be due again.
    await client.add_jobs([replace(each, max_attempts=1) for each in tiny(600)])

    async def some(payload: dict[str, int]) -> None:
        if payload["n"] % 3 == 0:
            raise LookupError(f"no {payload['n']}")

    assert await once({"tiny": some}, concurrency=10) == 600

    rows = sql.run(
        "select (payload ->> 'n')::int, attempts, last_error, locked_by from :schema._private_jobs "
        "order by 1"
    )
    assert [(n, attempts, holder) for n, attempts, _, holder in rows] == [
        (n, 1, None) for n in range(0, 600, 3)
    ]
    assert all(f"no {n}" in error.splitlines()[0] for n, _, error, _ in rows)


@pytest.mark.feature("F294")
async def test_no_more_jobs_start_while_too_many_outcomes_are_unwritten(start, client, sql):
    most = 20
    ran = 0

    async def work(payload: object) -> None:
        nonlocal ran
        ran += 1

    hold_back_deletes(sql)
    await client.add_jobs(tiny(1000))
    await start(
        {"tiny": work},
        concurrency=4,
        hooks=Hooks(),
        poll_interval=HOUR,
        timings=WorkerTimings(max_pending_completions=most),
    )
    await wait_until(lambda: ran > most)
    # Time for hundreds of them.
    await asyncio.sleep(0.3)
    # Those that are being written, those that wait for that, and one in each worker's hands.
    assert ran <= 2 * most + 4

    sql.run("select pg_advisory_unlock(1)")
    await wait_until(lambda: sql.value(LEFT) == 0)
    assert ran == 1000


def hold_back_deletes(sql: Sql) -> None:
    """Whoever deletes jobs waits until this session gives up its lock."""
    sql.run("""
      create function public.wait() returns trigger language plpgsql as $wait$
      begin
        perform pg_advisory_xact_lock_shared(1);
        return null;
      end
      $wait$
    """)
    sql.run(
        "create trigger wait before delete on :schema._private_jobs "
        "for each statement execute function public.wait()"
    )
    sql.run("select pg_advisory_lock(1)")
