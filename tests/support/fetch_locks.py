"""A worker's fetch as a second session, held open, and waiting for those who wait for it."""

import asyncio
import time

from tests.support.sql import Sql


def open_fetch(sql: Sql, job_id: int) -> Sql:
    """A session that has locked the job and not committed yet."""
    fetcher = sql.another()
    fetcher.run("begin")
    fetcher.run(
        "update :schema._private_jobs set locked_at = now(), locked_by = 'pool', "
        "attempts = attempts + 1 where id = $1",
        job_id,
    )
    return fetcher


async def commit_when_blocking(fetcher: Sql, watcher: Sql, *, how: str = "commit") -> None:
    """Wait until another session waits for this one, then end its transaction and close it."""
    await wait_for_lock(watcher)
    fetcher.run(how)
    fetcher.close()


async def wait_for_lock(watcher: Sql) -> None:
    """Wait until a session of this database waits for another."""
    waiting = (
        "select count(*) from pg_stat_activity "
        "where datname = current_database() and wait_event_type = 'Lock'"
    )
    deadline = time.monotonic() + 20
    while not watcher.value(waiting):
        assert time.monotonic() < deadline, "no session waits for the lock"
        await asyncio.sleep(0.005)
