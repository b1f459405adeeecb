"""Rate limits of workers whose own clocks are wrong: the database's clock counts."""

import pytest

from tests.support.faketime import WrongClock
from tests.support.processes import eventually

pytestmark = pytest.mark.nightly

JOBS = 300
RATE, BURST = 20, 3

APP = f"""
    import time
    from datetime import timedelta

    from graphile_worker import App, JobContext, RateLimit

    app = App()


    @app.task(limit=RateLimit({RATE}, per=timedelta(seconds=1), burst={BURST}))
    async def call(ctx: JobContext[None]) -> None:
        # One clock for all processes, which no program can set.
        began = time.monotonic()
        await ctx.query("insert into starts values (%s)", (began,))
"""
# The most starts in a window of time, less what the rate allows in it. A worker may use a token
# for 250 ms.
EXCESS = f"""
select max(count - {RATE} * (seconds + 0.25))::float8
from (
  select
    (select count(*) from starts as each where each.at between first.at and last.at) as count,
    last.at - first.at as seconds
  from starts as first
  join starts as last on last.at >= first.at
) as windows
"""


@pytest.mark.timeout(120)
def test_workers_with_clocks_off_by_a_day_start_no_more_jobs_than_the_rate(
    programs, sql, tmp_path, figure
):
    sql.run("create table starts (at float8)")
    programs.write("shop.py", APP)
    for name, shift in (("ahead", "+1d"), ("behind", "-1d"), ("right", "+0")):
        clock = WrongClock(tmp_path / name, shift)
        programs.worker("--app", "shop:app", **clock.variables)
    sql.run("select :schema.add_job('call') from generate_series(1, $1::int)", JOBS)

    eventually(lambda: sql.value("select count(*) from starts") == JOBS, "all jobs ran")

    excess = sql.value(EXCESS)
    figure(
        f"rate limit, clocks off by a day: at most {excess:.1f} of {BURST} starts above the rate"
    )
    assert excess <= BURST
