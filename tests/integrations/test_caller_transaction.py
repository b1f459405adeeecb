"""A job joins the transaction of the connection it is added on, and that is all we do there."""

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from graphile_worker import Client, JobSpec, sync
from tests.conftest import TestDatabase
from tests.integrations.kinds import (
    AUTOCOMMIT_KINDS,
    BLOCKING_KINDS,
    KINDS,
    Lent,
    done,
)
from tests.support.cluster import Cluster
from tests.support.sql import Sql

every_kind = pytest.mark.parametrize("kind", KINDS)

# A test calls both on one connection.
METHODS = ("add_job", "add_jobs")

# All that a driver, a template or a codec might take for its own.
NASTY = "' \" \\ \\n \\u0041 % %s %(p1)s %% $1 $$ $gw$ :x :p1 ::text \\: ? {} ünï \u2028 ☃ 😀\n\t"
PAYLOAD = {
    "text": NASTY,
    NASTY: [1, -2.5, 1e300, True, None, {"deep": [[], {}, ""]}],
}
PAYLOAD_TEXT = json.dumps(PAYLOAD, ensure_ascii=False, separators=(",", ":"))


@pytest.fixture(scope="module")
def database(shared_database: TestDatabase) -> TestDatabase:
    return shared_database


@pytest.fixture
def sql(shared_sql: Sql) -> Iterator[Sql]:
    yield shared_sql
    clear(shared_sql)


def clear(sql: Sql) -> None:
    sql.run("delete from :schema._private_jobs")
    sql.run("delete from :ext_schema.unique_keys")


async def add(lent: Lent, method: str) -> None:
    options: Any = {
        "queue_name": f"queue {NASTY}",
        "job_key": f"key {NASTY}",
        "flags": ["%s", ":x"],
    }
    if method == "add_job":
        await lent.ask("add_job", f"task {NASTY}", PAYLOAD, **options)
    else:
        await lent.ask("add_jobs", [JobSpec(f"task {NASTY}", PAYLOAD, **options)])


def payloads(sql: Sql) -> list[str]:
    rows = sql.run("select payload::text from :schema._private_jobs order by id")
    return [text for (text,) in rows]


@pytest.mark.feature("F39")
@every_kind
async def test_a_job_exists_once_its_transaction_commits(
    kind: str, database: TestDatabase, sql: Sql
) -> None:
    async with KINDS[kind](database) as lent:
        for method in METHODS:
            await lent.begin()
            await add(lent, method)
            before = payloads(sql)

            await lent.commit()

            assert before == []
            assert payloads(sql) == [PAYLOAD_TEXT]
            clear(sql)


@pytest.mark.feature("F39")
@every_kind
async def test_a_job_never_exists_if_its_transaction_rolls_back(
    kind: str, database: TestDatabase, sql: Sql
) -> None:
    async with KINDS[kind](database) as lent:
        for method in METHODS:
            await lent.begin()
            await add(lent, method)

            await lent.rollback()

            assert payloads(sql) == []


@every_kind
async def test_a_unique_key_belongs_to_the_transaction_that_adds_its_job(
    kind: str, database: TestDatabase, sql: Sql
) -> None:
    spec = JobSpec(f"task {NASTY}", PAYLOAD, unique=NASTY, unique_for=timedelta(days=1))
    async with KINDS[kind](database) as lent:
        await lent.begin()
        added = await lent.ask("add_jobs", [spec])
        await lent.rollback()
        freed = sql.run("select from :ext_schema.unique_keys") == []

        await lent.begin()
        added += await lent.ask("add_jobs", [spec, JobSpec("plain"), spec])
        await lent.commit()
        await lent.begin()
        added.append(await lent.ask("add_job", "other", unique=NASTY, unique_for=timedelta(days=1)))
        await lent.commit()

    assert freed
    assert [job.is_duplicate for job in added] == [False, False, False, True, True]
    assert added[4] == added[3] == added[1]
    assert added[4].payload_text == PAYLOAD_TEXT
    assert sql.run("select key from :ext_schema.unique_keys") == [(NASTY,)]


@pytest.mark.feature("F39")
@every_kind
async def test_a_job_goes_with_the_savepoint_that_it_was_added_after(
    kind: str, database: TestDatabase, sql: Sql
) -> None:
    async with KINDS[kind](database) as lent:
        for method in METHODS:
            await lent.begin()
            await lent.ask("add_job", "kept")
            await lent.savepoint()
            await add(lent, method)

            await lent.rollback_to_savepoint()
            await lent.commit()

            assert payloads(sql) == ["{}"]
            clear(sql)


@every_kind
async def test_the_answer_is_the_same_on_every_kind(kind: str, database: TestDatabase) -> None:
    options: Any = {"queue_name": NASTY, "job_key": NASTY, "flags": ["%s", ":x"], "priority": -3}
    async with KINDS[kind](database) as lent:
        for method in METHODS:
            await lent.begin()

            if method == "add_job":
                job = await lent.ask("add_job", NASTY, PAYLOAD, **options)
            else:
                [job] = await lent.ask("add_jobs", [JobSpec(NASTY, PAYLOAD, **options)])
            found = await lent.ask("get_job", job.id)
            await lent.rollback()

            assert (job.task_identifier, job.queue_name, job.key) == (NASTY, NASTY, NASTY)
            assert (job.payload, job.payload_text) == (PAYLOAD, PAYLOAD_TEXT)
            assert (job.flags, job.priority) == ({"%s", ":x"}, -3)
            assert found == job


@pytest.mark.feature("F39", "F46")
@every_kind
async def test_jobs_without_keys_are_inserted_directly_on_every_kind(
    kind: str, database: TestDatabase, sql: Sql
) -> None:
    options: Any = {"queue_name": NASTY, "flags": ["%s", ":x", NASTY], "priority": -3}
    spec = JobSpec(NASTY, PAYLOAD, run_at=timedelta(days=1), **options)
    async with KINDS[kind](database) as lent:
        for _ in range(2):
            # The first call is for the function, and the next one inspects the schema.
            await lent.begin()
            await lent.ask("add_spec", spec)
            await lent.commit()
        clear(sql)

        await lent.begin()
        jobs = [await lent.ask("add_spec", spec)]
        assert count_direct_inserts(sql) == 1
        jobs += await lent.ask("add_jobs", [spec, JobSpec(NASTY), spec])
        assert count_direct_inserts(sql) == 1
        found = [await lent.ask("get_job", job.id) for job in jobs]
        before = payloads(sql)
        await lent.commit()

        assert found == jobs
        assert before == []
        assert payloads(sql) == [PAYLOAD_TEXT, PAYLOAD_TEXT, "{}", PAYLOAD_TEXT]


def count_direct_inserts(sql: Sql) -> int:
    """The sessions whose last statement inserts jobs without the functions."""
    return len(
        sql.run(
            "select pid from pg_stat_activity "
            "where datname = current_database() and query like 'with lock_tasks as (%'"
        )
    )


@pytest.mark.feature("F39")
@every_kind
async def test_the_connection_is_left_as_its_owner_set_it_up(
    kind: str, database: TestDatabase
) -> None:
    async with KINDS[kind](database) as lent:
        for method in METHODS:
            await lent.begin()
            before = lent.facts()

            await add(lent, method)

            assert lent.facts() == before
            await lent.rollback()


@pytest.mark.parametrize("kind", AUTOCOMMIT_KINDS)
async def test_on_a_connection_in_autocommit_mode_the_job_exists_at_once(
    kind: str, database: TestDatabase, sql: Sql
) -> None:
    async with KINDS[kind](database) as lent:
        await lent.use_autocommit()
        before = lent.facts()
        for method in METHODS:
            await add(lent, method)

            assert payloads(sql) == [PAYLOAD_TEXT]
            assert lent.facts() == before
            clear(sql)


@every_kind
async def test_everything_else_joins_the_transaction_as_well(
    kind: str, database: TestDatabase, sql: Sql
) -> None:
    async with KINDS[kind](database) as lent:
        await lent.begin()
        specs = [JobSpec(name, {"n": name}, job_key=f"{name} %:$1") for name in "abcd"]
        a, b, c, d = await lent.ask("add_jobs", specs)

        assert await lent.ask("get_job", a.id) == a
        assert await lent.ask("get_job_by_key", b.key) == b
        assert (await lent.ask("remove_job", a.key)).id == a.id
        assert [job.id for job in await lent.ask("complete_jobs", [b.id])] == [b.id]
        [failed] = await lent.ask("permanently_fail_jobs", [c.id], "100% :x $1 'no'")
        [moved] = await lent.ask("reschedule_jobs", [d.id], run_at=timedelta(days=1), attempts=3)
        await lent.ask("force_unlock_workers", ["pool %s", "pool :x"])

        assert (failed.attempts, failed.last_error) == (25, "100% :x $1 'no'")
        assert (moved.attempts, moved.run_at - d.run_at) == (3, timedelta(days=1))
        assert payloads(sql) == []
        await lent.commit()
        assert payloads(sql) == ['{"n":"c"}', '{"n":"d"}']


@every_kind
async def test_a_connection_for_the_other_client_is_rejected_before_any_sql(
    kind: str, database: TestDatabase
) -> None:
    wrong: Any = sync.Client
    right = "graphile_worker.Client"
    if kind in BLOCKING_KINDS:
        wrong, right = Client, "graphile_worker.sync.Client"
    if kind.startswith("Django"):
        right = r"enqueue\(\) in a plain function, and await sync_to_async\("
    async with KINDS[kind](database) as lent:
        before = lent.facts()
        client = wrong(database.dsn, schema=database.schema)

        with pytest.raises(TypeError, match=f"{type(lent.conn).__name__} is .*{right}"):
            await done(client.add_job("task", conn=lent.conn))

        assert lent.facts() == before


@pytest.mark.parametrize("client_class", [Client, sync.Client])
@pytest.mark.parametrize("stranger", [object(), "host=somewhere", 1])
async def test_an_unsupported_connection_is_rejected_with_its_class(
    client_class: Any, stranger: object, database: TestDatabase
) -> None:
    client = client_class(database.dsn, schema=database.schema)

    with pytest.raises(TypeError, match=f"builtins.{type(stranger).__name__} is not a"):
        await done(client.add_job("task", conn=stranger))


@pytest.fixture(scope="module")
def talkative(pytestconfig: pytest.Config, schema: str) -> Iterator[TestDatabase]:
    """A migrated database on a server that writes down every statement."""
    server = Cluster(pytestconfig.getoption("--pg"), settings=["log_statement=all"]).start()
    with sync.Client(server.dsn(), schema=schema) as client:
        client.migrate()
    yield TestDatabase("postgres", server, schema)
    server.stop()


@pytest.mark.feature("F39")
@every_kind
async def test_adding_sends_one_statement_and_nothing_else(
    kind: str, talkative: TestDatabase
) -> None:
    async with KINDS[kind](talkative) as lent:
        for method in METHODS:
            await lent.begin()
            # So that its names are known, and the second time is the usual one.
            await add(lent, method)
            await lent.execute("select 'from here'")

            await add(lent, method)

            await lent.execute("select 'to here'")
            await lent.rollback()
            [statement] = logged_between(talkative.cluster, "'from here'", "'to here'")
            assert re.match(r"(with calls as|select\s+jobs\.id)", statement)


def logged_between(server: Cluster, start: str, end: str) -> list[str]:
    """The statements that the server was sent between the last two that hold these words."""
    log = server.log.read_text(errors="replace")
    entries = re.split(r"^\d{4}-\d\d-\d\d .*? LOG:  (?:statement|execute [^:]*): ", log, flags=re.M)
    first = max(i for i, entry in enumerate(entries) if start in entry)
    last = max(i for i, entry in enumerate(entries) if end in entry)
    return entries[first + 1 : last]


async def test_statements_that_their_owner_prepared_stay_prepared(database: TestDatabase) -> None:
    with psycopg.connect(database.dsn, prepare_threshold=0) as conn:
        conn.execute("select 1")
        held = "select count(*) from pg_prepared_statements where statement = 'select 1'"
        client = sync.Client(database.dsn, schema=database.schema)

        client.add_job("task", conn=conn)

        assert conn.execute(held).fetchone() == (1,)
        assert conn.prepare_threshold == 0
