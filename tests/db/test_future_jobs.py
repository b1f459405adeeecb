"""A fetch reads no jobs of the future, however many have the priority of those that it takes.

Other tests of what a fetch costs run on one version. This one runs on every version, because
PostgreSQL before 18 stops later in an index of priorities and times.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import product

import pytest

from graphile_worker._sql.queries.claim import NO_BYTE_LIMIT
from tests.support.pools import Pool
from tests.support.rows import count_pages
from tests.support.sql import Sql
from tests.support.tiers import size

# What the statements do: test_statements.py runs each of them on the oldest pair too.
pytestmark = pytest.mark.single_version

READY = 5
# Enough that the indexes have a root, as those of a large table.
FEW = 2_000
MANY = size(gate=40_000, nightly=1_000_000)

CHECK = "check_ready_jobs"
STATEMENTS = (
    "claim_first_job",
    "claim_plain_jobs",
    "claim_soonest_jobs",
    "claim_jobs",
    "claim_jobs_unindexed",
    CHECK,
)
MODES = ("force_generic_plan", "force_custom_plan")
LIMITS = (1, 10)


def add_jobs(sql: Sql, pool: Pool, count: int, first: str) -> None:
    """Add jobs of one priority, a second after each other."""
    sql.run(
        "insert into :schema._private_jobs (task_id, run_at) "
        "select $1::int, now() + $2::text::interval + n * interval '1 second' "
        "from generate_series(1, $3::int) as n",
        *(next(iter(pool.tasks)), first, count),
    )
    sql.run("vacuum analyze :schema._private_jobs")


@contextmanager
def all_ready(sql: Sql) -> Iterator[None]:
    yield


@contextmanager
def locked_by_another(sql: Sql) -> Iterator[None]:
    """Another transaction holds the rows of all that is ready, so a fetch looks at all there is."""
    with closing(sql.another()) as other:
        other.run("begin")
        other.run("select from :schema._private_jobs where run_at <= now() for update")
        yield


@contextmanager
def none_ready(sql: Sql) -> Iterator[None]:
    sql.run("update :schema._private_jobs set attempts = max_attempts where run_at <= now()")
    sql.run("vacuum analyze :schema._private_jobs")
    yield
    sql.run("update :schema._private_jobs set attempts = 0 where run_at <= now()")
    sql.run("vacuum analyze :schema._private_jobs")


SCENES = (all_ready, locked_by_another, none_ready)


def pages_read(sql: Sql, pool: Pool) -> dict[tuple[object, ...], int]:
    """The pages that each statement reads in each scene to take one job, or all that are ready."""
    read: dict[tuple[object, ...], int] = {}
    for scene in SCENES:
        with scene(sql):
            for way in product(STATEMENTS, MODES, LIMITS):
                read[scene.__name__, *way] = pages_of(sql, pool, *way)
    return read


def pages_of(sql: Sql, pool: Pool, statement: str, mode: str, limit: int) -> int:
    sql.run("select set_config('plan_cache_mode', $1, false)", mode)
    args = (pool.id, list(pool.tasks), None, limit, None, None, None, NO_BYTE_LIMIT)
    # The tasks, the flags and the time.
    return count_pages(sql, statement, *(args[1:3] + args[4:5] if statement == CHECK else args))


@pytest.mark.timeout(120)
def test_a_fetch_reads_no_jobs_of_the_future_of_the_same_priority(pool, sql, figure):
    assert pool.has_indexes
    add_jobs(sql, pool, READY, first="-1 hour")
    add_jobs(sql, pool, FEW, first="30 days")
    few = pages_read(sql, pool)

    add_jobs(sql, pool, MANY, first="60 days")
    many = pages_read(sql, pool)

    ratios = {way: many[way] / few[way] for way in many}
    figure(f"pages of a fetch beside {MANY:,} jobs of the future: × {max(ratios.values()):.1f}")
    assert {way: many[way] for way in many if ratios[way] > 3} == {}
