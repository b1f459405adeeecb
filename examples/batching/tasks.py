"""Collect readings for a moment and store them together."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from graphile_worker import App, Backoff, JobContext

KEY = "gather:readings"
WINDOW = timedelta(seconds=2)

STORE = """
insert into readings (sensor, at, value)
select * from unnest(%s::text[], %s::timestamptz[], %s::float8[])
on conflict do nothing
"""

app = App()


@dataclass
class Reading:
    sensor: str
    at: datetime
    value: float


def note(reading: Reading) -> int:
    """Add a reading to the collecting job. Return how many readings the job has."""
    return len(gather.accumulate(reading, key=KEY, delay=WINDOW).payload)


@app.batch_task
async def gather(ctx: JobContext, readings: list[Reading]) -> None:
    """Pass the readings of a window to a job without a key, which can be retried."""
    await ctx.add_jobs([store.spec(readings)])


@app.batch_task(max_attempts=10, retry=Backoff(base=timedelta(seconds=1)))
async def store(ctx: JobContext, readings: list[Reading]) -> list[BaseException | None]:
    """Store all readings with one insert. Only readings of unknown sensors are retried."""
    known = await known_sensors(ctx, readings)
    good = [reading for reading in readings if reading.sensor in known]
    async with ctx.connection() as conn:
        columns = [[r.sensor for r in good], [r.at for r in good], [r.value for r in good]]
        await conn.execute(STORE, columns)
    ctx.logger.info("stored %d of %d readings", len(good), len(readings))
    return [None if r.sensor in known else LookupError(f"no sensor {r.sensor}") for r in readings]


async def known_sensors(ctx: JobContext, readings: list[Reading]) -> set[str]:
    names = [reading.sensor for reading in readings]
    rows = await ctx.query("select name from sensors where name = any(%s)", [names])
    return {row["name"] for row in rows}
