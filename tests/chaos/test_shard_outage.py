"""The server of one shard stops: the other shard continues, and no job is lost."""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from graphile_worker import Hooks, JobContext, JobSpec, Retry, Shards, WorkerOptions, run
from tests.support.cluster import Cluster
from tests.support.recorder import wait_until
from tests.support.tiers import size

pytestmark = [pytest.mark.single_version, pytest.mark.timeout(300)]

JOBS = size(gate=150, nightly=2_000)
# On a busy machine, the jobs take longer than other tests wait.
WAIT_SECONDS = 120.0
RATE_SECONDS = 10.0


@pytest.fixture
def clusters(pytestconfig) -> Iterator[dict[str, Cluster]]:
    major = pytestconfig.getoption("--pg")
    # A crash must not lose commits.
    settings = ["synchronous_commit=on"]
    clusters = {name: Cluster(major, settings).start() for name in "ab"}
    yield clusters
    for cluster in clusters.values():
        cluster.stop()


@pytest.fixture
async def shards(clusters) -> AsyncIterator[Shards]:
    async with Shards({name: each.dsn() for name, each in clusters.items()}) as shards:
        await shards.migrate()
        yield shards


class Tasks:
    """Counts the runs of each job, by shard."""

    def __init__(self) -> None:
        self.runs: dict[str, Counter[int]] = {"a": Counter(), "b": Counter()}

    async def task(self, payload: dict[str, Any], ctx: JobContext) -> None:
        assert ctx.job.shard is not None
        self.runs[ctx.job.shard][payload["n"]] += 1
        await asyncio.sleep(0.005)
        if ctx.job.shard == "b" and ctx.job.attempts == 1:
            # A worker waits until its failure is written.
            raise Retry(timedelta(milliseconds=1))


async def add(shards: Shards, name: str, numbers: range) -> None:
    await shards.client(name).add_jobs([JobSpec("task", {"n": number}) for number in numbers])


def count_jobs(cluster: Cluster) -> int:
    with psycopg.connect(cluster.dsn()) as connection:
        row = connection.execute("select count(*) from graphile_worker._private_jobs").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["stop", "crash"])
async def test_an_outage_of_one_shard_leaves_the_other_alone_and_loses_nothing(
    shards, clusters, how
):
    tasks = Tasks()
    for name in "ab":
        await add(shards, name, range(JOBS))
    runner = await run(
        Shards({name: each.dsn() for name, each in clusters.items()}),
        {"task": tasks.task},
        options=WorkerOptions(concurrency=4),
        hooks=Hooks(),
        handle_signals=False,
    )
    await wait_until(lambda: len(tasks.runs["b"]) > 20)

    await asyncio.to_thread(clusters["b"].halt, how)
    # Workers that cannot write the failure of a job hold no slot of the other shard.
    await add(shards, "a", range(JOBS, 2 * JOBS))
    await wait_until(lambda: len(tasks.runs["a"]) == 2 * JOBS, WAIT_SECONDS)
    assert runner.is_ready
    with pytest.raises(psycopg.OperationalError):
        await shards.client("b").add_job("task", {"n": -1})

    await asyncio.to_thread(clusters["b"].launch)
    await wait_until(lambda: count_jobs(clusters["b"]) == 0, WAIT_SECONDS)
    await runner.stop()

    assert set(tasks.runs["b"]) == set(range(JOBS))
    assert count_jobs(clusters["a"]) == 0
    # Without the outage of its own server, a job runs once.
    assert set(tasks.runs["a"].values()) == {1}


@pytest.mark.nightly
@pytest.mark.serial
async def test_the_rate_of_a_shard_stays_while_the_other_is_stopped(shards, clusters, figure):
    tasks = Tasks()
    runner = await run(
        Shards({name: each.dsn() for name, each in clusters.items()}),
        {"task": tasks.task},
        options=WorkerOptions(concurrency=8),
        hooks=Hooks(),
        handle_signals=False,
    )

    async def measure(first: int) -> float:
        await add(shards, "a", range(first, first + 60_000))
        await asyncio.sleep(2)
        before, started_at = len(tasks.runs["a"]), time.monotonic()
        await asyncio.sleep(RATE_SECONDS)
        rate = (len(tasks.runs["a"]) - before) / (time.monotonic() - started_at)
        await asyncio.to_thread(empty, clusters["a"])
        return rate

    with_both = await measure(0)
    await asyncio.to_thread(clusters["b"].halt)
    with_one = await measure(100_000)
    await asyncio.to_thread(clusters["b"].launch)
    await runner.stop()

    figure(f"jobs/s with both shards: {with_both:,.0f}; with one stopped: {with_one:,.0f}")
    assert with_one == pytest.approx(with_both, rel=0.1)


def empty(cluster: Cluster) -> None:
    with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
        connection.execute("delete from graphile_worker._private_jobs where locked_at is null")
