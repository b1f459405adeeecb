"""Tokens in PostgreSQL, shared by all workers: what must be held is held here."""

from datetime import datetime, timedelta

from graphile_worker import JobContext, Snooze
from psycopg_pool import AsyncConnectionPool

# One statement: two workers never get the same token, and none waits for the other.
TAKE = """
update tokens
set free_at = clock_timestamp() + per
where id = (
  select id from tokens
  where flag = %s and free_at <= clock_timestamp()
  order by free_at
  limit 1
  for update skip locked
)
returning free_at - per as taken_at
"""

WAIT = """
select least(min(free_at), clock_timestamp() + interval '1 minute') - clock_timestamp() as wait
from tokens
where flag = %s
having count(*) > 0
"""

EXHAUSTED = """
select flag
from tokens
group by flag
having min(free_at) > clock_timestamp()
"""

# A token may be in another worker's hands at this moment, and free all the same.
SHORTLY = timedelta(milliseconds=20)


async def take_token(ctx: JobContext, flag: str) -> datetime:
    """When a call was allowed. If none is left the job waits for one; no attempt is spent."""
    taken = await ctx.query(TAKE, [flag])
    if taken:
        taken_at: datetime = taken[0]["taken_at"]
        return taken_at
    found = await ctx.query(WAIT, [flag])
    if not found:
        raise LookupError(f"there are no tokens for {flag}")
    raise Snooze(max(found[0]["wait"], SHORTLY))


async def exhausted(pool: AsyncConnectionPool) -> list[str]:
    """The flags that have no token left: jobs with these need not be fetched now."""
    async with pool.connection() as conn:
        answer = await conn.execute(EXHAUSTED)
        return [flag for (flag,) in await answer.fetchall()]
