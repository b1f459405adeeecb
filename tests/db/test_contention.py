"""Many sessions add the same few keys while a fetcher takes and returns those jobs."""

import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from graphile_worker import Job, sync
from tests.support.clients import record_statements
from tests.support.sql import Sql
from tests.support.tiers import size

# Heavy: the nightly tier runs it on the other versions.
pytestmark = pytest.mark.single_version

CONNECTIONS = 20
KEYS = 50
ADDS = size(gate=1_000, nightly=10_000)

# The fetcher keeps its transaction open for a moment, so that adds run into uncommitted locks.
FETCH = """
with taken as (
  select id from :schema._private_jobs
  where key is not null and locked_at is null
  order by random() limit 10
  for update skip locked
)
update :schema._private_jobs as jobs
set locked_at = now(), locked_by = 'fetcher', attempts = attempts + 1
from taken
where jobs.id = taken.id
"""
RELEASE = """
update :schema._private_jobs set locked_at = null, locked_by = null where locked_by = 'fetcher'
"""
REMEMBER = "insert into public.log (key, number) values ($1, $2::int)"


@pytest.mark.feature("F50", "F64", "F66", "F75", "F86")
@pytest.mark.timeout(180)
def test_every_contended_add_lands_and_the_last_committed_one_stays(database, sql, monkeypatch):
    statements = record_statements(monkeypatch)
    # A key's row is locked from its add to its commit, so per key the log is in commit order.
    sql.run("create table public.log (at bigserial, key text, number int)")

    with sync.Client(database.dsn, schema=database.schema) as client:
        over = threading.Event()
        fetcher = threading.Thread(target=fetch_and_release, args=(sql, over))
        fetcher.start()
        try:
            jobs = add_from_all(client, database.dsn)
        finally:
            over.set()
            fetcher.join()

    assert len(jobs) == ADDS
    assert_returned_what_was_asked(jobs)
    assert last_payloads(sql) == last_of_the_log(sql)
    assert statements.count("add_job") > ADDS, "no add ever ran into an uncommitted lock"


def add_from_all(client: sync.Client, dsn: str) -> list[tuple[int, Job]]:
    with ThreadPoolExecutor(CONNECTIONS) as threads:
        parts = [threads.submit(add_part, client, dsn, part) for part in range(CONNECTIONS)]
        return [pair for part in parts for pair in part.result()]


def add_part(client: sync.Client, dsn: str, part: int) -> list[tuple[int, Job]]:
    """Every so manyth add, each in a transaction of its own."""
    jobs = []
    with psycopg.connect(dsn, cursor_factory=psycopg.RawCursor) as connection:
        for number in range(part, ADDS, CONNECTIONS):
            key = key_of(number)
            job = client.add_job("task", {"n": number}, job_key=key, conn=connection)
            connection.execute(REMEMBER, (key, number))
            connection.commit()
            jobs.append((number, job))
    return jobs


def key_of(number: int) -> str:
    # By rounds of all sessions, so that every session meets every key.
    return f"key-{(number // CONNECTIONS + number) % KEYS}"


def fetch_and_release(sql: Sql, over: threading.Event) -> None:
    session = sql.another()
    while not over.is_set():
        with session.connection.transaction():
            session.run(FETCH)
            session.run("select pg_sleep(0.005)")
        session.run(RELEASE)
    session.close()


def assert_returned_what_was_asked(jobs: list[tuple[int, Job]]) -> None:
    for number, job in jobs:
        assert job.key == key_of(number)
        assert job.payload == {"n": number}
        assert (job.attempts, job.locked_by, job.task_identifier) == (0, None, "task")


def last_payloads(sql: Sql) -> dict[str, int]:
    rows = sql.run("select key, payload ->> 'n' from :schema._private_jobs where key is not null")
    return {key: int(number) for key, number in rows}


def last_of_the_log(sql: Sql) -> dict[str, int]:
    return dict(
        sql.run("select distinct on (key) key, number from public.log order by key, at desc")
    )
