"""Tokens in PostgreSQL, shared by all workers, which enforce the limit."""

from datetime import datetime, timedelta

from graphile_worker import JobContext, Snooze
from psycopg_pool import AsyncConnectionPool

# One statement: two workers never get the same token, and neither waits for the other.
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

# Shortest delay: a token that another transaction has locked can still look free.
SHORTLY = timedelta(milliseconds=20)


async def take_token(ctx: JobContext, flag: str) -> datetime:
    """Take a token and return the time, or snooze the job without using up an attempt."""
    taken = await ctx.query(TAKE, [flag])
    if taken:
        taken_at: datetime = taken[0]["taken_at"]
        return taken_at
    found = await ctx.query(WAIT, [flag])
    if not found:
        raise LookupError(f"no tokens for {flag}")
    raise Snooze(max(found[0]["wait"], SHORTLY))


async def exhausted(pool: AsyncConnectionPool) -> list[str]:
    """Return the flags without a free token, whose jobs workers should skip."""
    async with pool.connection() as conn:
        answer = await conn.execute(EXHAUSTED)
        return [flag for (flag,) in await answer.fetchall()]
