"""Databases without UTF-8: texts round-trip, or are rejected with a clear error."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool

from graphile_worker import (
    Hooks,
    JobContext,
    JobSpec,
    JobSpecError,
    RecoveryOptions,
    WorkerOptions,
    run_once,
    sync,
)
from graphile_worker._sql.queries.cron import schedule_jobs
from tests.conftest import TestDatabase
from tests.support.cluster import Cluster
from tests.support.pools import open_session
from tests.support.recorder import open_runners, wait_until
from tests.support.sql import Sql

# A name of our schema that any encoding has.
SCHEMA = "graphile_worker"

# Letters that LATIN1 has, and letters that it has not.
WESTERN = "café für Zoë"
WIDE = "名 Ω €"

# What each encoding can hold: SQL_ASCII takes all bytes as they are.
HOLDS = [("SQL_ASCII", WESTERN), ("SQL_ASCII", WIDE), ("LATIN1", WESTERN)]

ERRORS = "select last_error from :schema._private_jobs order by id"


def database_in(encoding: str, cluster: Cluster) -> Iterator[TestDatabase]:
    name = f"in_{encoding.lower()}"
    with psycopg.connect(cluster.dsn(), autocommit=True) as admin:
        admin.execute(
            f"create database {name} encoding '{encoding}' template template0 "
            "lc_collate 'C' lc_ctype 'C'".encode()
        )
    database = TestDatabase(name, cluster, SCHEMA)
    with sync.Client(database.dsn, schema=SCHEMA) as client:
        client.migrate()
    yield database
    cluster.drop_database(name)


@pytest.fixture
def encoded(request, cluster) -> Iterator[TestDatabase]:
    """A database with our schema, in the encoding that the test was given."""
    yield from database_in(request.param, cluster)


@pytest.fixture
def sql(encoded) -> Iterator[Sql]:
    opened = Sql(f"{encoded.dsn} client_encoding=utf8", SCHEMA)
    yield opened
    opened.close()


async def run_all(database: TestDatabase, *names: str) -> list[tuple[str, Any]]:
    """Run what is there; what the tasks with these names were given."""
    seen: list[tuple[str, Any]] = []

    def noting(name: str) -> Any:
        async def note(payload: Any) -> None:
            seen.append((name, payload))

        return note

    tasks = {name: noting(name) for name in names}
    await run_once(database.dsn, tasks, options=WorkerOptions(schema=SCHEMA))
    return seen


@pytest.mark.parametrize(("encoded", "text"), HOLDS, indirect=["encoded"])
async def test_texts_that_the_database_can_store_round_trip(encoded, text, sql):
    payload = {"text": text, text: [text]}
    with sync.Client(encoded.dsn, schema=SCHEMA) as client:
        one = client.add_job(text, payload, queue_name=text, job_key=text, flags=[text])
        (other,) = client.add_jobs([JobSpec(text, payload, queue_name=text, job_key=f"{text} 2")])

    for job in (one, other):
        assert (job.task_identifier, job.payload, job.queue_name) == (text, payload, text)
    assert (one.key, one.flags) == (text, frozenset([text]))
    assert await run_all(encoded, text) == [(text, payload), (text, payload)]
    assert sql.run(ERRORS) == []


@pytest.mark.parametrize(("encoded", "text"), HOLDS, indirect=["encoded"])
async def test_a_crontab_may_contain_such_texts(encoded, text):
    minute = datetime.now(UTC).replace(second=0, microsecond=0)
    with open_session(encoded) as connection:
        connection.run(schedule_jobs([(text, JobSpec(text, {"text": text}))], minute))

    assert await run_all(encoded, text) == [(text, {"text": text})]


@pytest.mark.parametrize("encoded", ["LATIN1"], indirect=True)
@pytest.mark.parametrize(
    "job",
    [
        {"payload": {"text": WIDE}},
        {"payload": {WIDE: 1}},
        {"queue_name": WIDE},
        {"job_key": WIDE},
        {"flags": [WIDE]},
    ],
    ids=str,
)
async def test_texts_that_the_database_cannot_store_are_rejected_with_a_clear_error(
    encoded, sql, job
):
    with sync.Client(encoded.dsn, schema=SCHEMA) as client:
        for add in (
            lambda: client.add_job("task", **job),
            lambda: client.add_jobs([JobSpec("task", **job)]),
        ):
            with pytest.raises(JobSpecError, match="the database encoding lacks") as told:
                add()

            assert told.value.code == "22P05"
            assert 'no equivalent in encoding "LATIN1"' in str(told.value.__cause__)

    assert sql.run("select from :schema._private_jobs") == []


@pytest.mark.parametrize("encoded", ["LATIN1"], indirect=True)
async def test_a_task_name_that_the_database_cannot_store_is_rejected_with_a_clear_error(encoded):
    with pytest.raises(psycopg.Error, match='no equivalent in encoding "LATIN1"'):
        await run_all(encoded, WIDE)


@pytest.mark.parametrize(
    ("encoded", "text", "kept"),
    [(encoding, text, text) for encoding, text in HOLDS]
    + [("LATIN1", WIDE, r"\u540d \u03a9 \u20ac")],
    indirect=["encoded"],
)
async def test_the_text_of_an_error_is_stored_as_it_is_or_with_escapes(encoded, sql, text, kept):
    async def fail(payload: object) -> None:
        raise ValueError(text)

    with sync.Client(encoded.dsn, schema=SCHEMA) as client:
        client.add_jobs([JobSpec("fail"), JobSpec("fail")])

    await run_once(encoded.dsn, {"fail": fail}, options=WorkerOptions(schema=SCHEMA, concurrency=2))

    first_lines = [error.splitlines()[0] for (error,) in sql.run(ERRORS)]
    assert first_lines == [f"ValueError: {kept}"] * 2


@pytest.mark.parametrize("encoded", ["LATIN1"], indirect=True)
async def test_an_error_text_outside_the_encoding_of_an_external_pool_is_escaped(encoded, sql):
    async def fails(payload: Any) -> None:
        raise ValueError(WIDE)

    with sync.Client(encoded.dsn, schema=SCHEMA) as client:
        client.add_job("fails", {})
    # It uses the encoding of the database by default.
    async with AsyncConnectionPool(encoded.dsn, min_size=1, max_size=8, open=False) as pool:
        async with asyncio.timeout(30):
            await run_once(pool, {"fails": fails}, options=WorkerOptions(schema=SCHEMA))

    [(error,)] = sql.run(ERRORS)
    assert WIDE.encode("ascii", "backslashreplace").decode() in error


@pytest.mark.parametrize("encoded", ["LATIN1"], indirect=True)
async def test_a_progress_message_that_the_database_cannot_store_has_escapes(encoded, sql):
    async def report(payload: object, ctx: JobContext) -> None:
        ctx.progress(0.5, WIDE)
        await asyncio.Event().wait()

    recovery = RecoveryOptions(heartbeat_interval=timedelta(milliseconds=50))
    async with open_runners(encoded, Hooks()) as start:
        runner = await start({"report": report}, recovery=recovery)
        await runner.add_job("report")
        messages = "select message from :ext_schema.progress"
        await wait_until(lambda: sql.run(messages))

        assert sql.value(messages) == r"\u540d \u03a9 \u20ac"
