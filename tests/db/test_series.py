"""Throughput and latency over time: exact for few outcomes, sampled for many."""

from datetime import timedelta

import pytest

from graphile_worker.ops.history import HistoryMissing
from graphile_worker.ops.history.series import OutcomeSeries, SeriesRange, plan_get_series
from tests.support import tiers

INSERT = """
insert into :ext_schema.outcomes (
  slot, job_id, task_identifier, succeeded, attempts, created_at, run_at, started_at, finished_at,
  pool_id
)
select
  0, number, $1, number % 10 > 0, 1, end_at, end_at - interval '5 s', end_at - interval '2 s',
  end_at, 'pool'
from generate_series(1, $2::int) as number
cross join lateral (select now() - $3::interval * (number::float8 / $2) as end_at) as times
"""
COUNT = tiers.size(gate=30_000, nightly=1_000_000)


def get_series(table, period: SeriesRange, **options) -> OutcomeSeries:
    series: OutcomeSeries = table.run_plan(plan_get_series(table.schemas, period, **options))
    return series


def test_outcomes_are_counted_in_buckets(table, sql):
    sql.run(INSERT, "task", 100, "59 minutes")
    sql.run(INSERT, "other", 10, "10 minutes")

    for period, count in [("1h", 60), ("6h", 72), ("24h", 96), ("7d", 84)]:
        series = get_series(table, SeriesRange(period))
        assert len(series.points) == count
        steps = {b.at - a.at for a, b in zip(series.points, series.points[1:], strict=False)}
        assert steps == {SeriesRange(period).step}
        assert timedelta(0) <= series.now - series.points[-1].at < series.period.step
        assert sum(each.succeeded for each in series.points) == 99
        assert sum(each.failed for each in series.points) == 11
        assert series.sampled_percent is None
    one = get_series(table, SeriesRange.HOUR, task="other")
    assert sum(each.succeeded + each.failed for each in one.points) == 10
    point = next(each for each in one.points if each.succeeded)
    assert (point.run_p50, point.run_p95, point.wait_p50) == (2.0, 2.0, 3.0)


def test_many_outcomes_are_sampled_and_the_counts_are_estimates(table, sql):
    sql.run(INSERT, "task", COUNT, "6 days")
    sql.run("analyze :ext_schema.outcomes")

    series = get_series(table, SeriesRange.WEEK, max_outcomes=1_000, sample_size=COUNT // 10)

    total = sum(each.succeeded + each.failed for each in series.points)
    assert series.sampled_percent is not None
    assert 2 < series.sampled_percent < 20
    assert COUNT / 2 < total < COUNT * 2


def test_outcomes_that_their_task_no_longer_keeps_are_left_out(table, sql):
    sql.run(INSERT, "task", 10, "10 minutes")
    sql.run("update :ext_schema.outcomes set expires_at = now() where job_id > 5")

    series = get_series(table, SeriesRange.HOUR)

    assert sum(each.succeeded + each.failed for each in series.points) == 5


def test_the_coverage_compares_tasks_that_keep_outcomes_with_all(table, sql):
    sql.run(INSERT, "kept", 1, "1 minute")
    table.add_job("kept")
    table.add_job("other")

    coverage = get_series(table, SeriesRange.HOUR).coverage

    assert (coverage.kept, coverage.seen) == (1, 2)


def test_a_series_needs_the_tables_of_outcomes(table, sql):
    sql.run("drop table :ext_schema.outcomes")

    with pytest.raises(HistoryMissing):
        get_series(table, SeriesRange.HOUR)
