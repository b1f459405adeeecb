"""Any number of installers at once, ours and the reference's: all succeed, one schema."""

import asyncio
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing

import pytest

from graphile_worker._db.database import run_plan, run_plan_sync
from graphile_worker._db.psycopg import PsycopgDatabase
from graphile_worker._db.sync import SyncPsycopgDatabase
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.migration import plan_migrate
from graphile_worker._sql.queries.migrations import LATEST_LEVEL
from tests.support.catalog import read_catalogue, read_companion, read_ledger
from tests.support.node import node_install, node_worker
from tests.support.rows import count_waiting_sessions as count_waiting
from tests.support.sql import Sql
from tests.support.tiers import size

# What depends on versions lies deeper, and is tested there on each.
pytestmark = pytest.mark.single_version

ASYNC = THREADS = size(gate=8, nightly=19)
NODES = size(gate=4, nightly=12)
ALL = ASYNC + THREADS + NODES

ROUNDS = range(size(gate=1, nightly=20))
UPGRADES = size(
    gate=[("0.16", "python"), ("0.17", "node")],
    nightly=[(version, first) for version in ("0.16", "0.17") for first in ("python", "node")],
)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("first", ["python", "node"])
@pytest.mark.parametrize("turn", ROUNDS)
@pytest.mark.feature("F2", "F15")
def test_fifty_installers_at_once_make_one_schema(empty_database, database, turn, first):
    # No session can create a schema while this lock is held.
    levels = install_all(empty_database, "pg_catalog.pg_namespace", first)

    assert set(levels) == {LATEST_LEVEL}
    assert_same_schema(empty_database, database)


@pytest.mark.timeout(120)
@pytest.mark.feature("F2", "F24")
def test_python_waits_for_node_installers_that_make_progress(empty_database, database):
    holder, watcher = (Sql(empty_database.dsn, empty_database.schema) for _ in range(2))
    with ThreadPoolExecutor(ALL) as executor, closing(watcher), closing(holder):
        stop_before_level(holder, 11)
        nodes, count = start_nodes(executor, empty_database)
        wait_for_waiting(watcher, count)
        # Enough for a slow machine: this test is not about giving up.
        ours, count = start_python(executor, empty_database, stall_timeout_seconds=100.0)
        wait_for_readers(watcher, count)
        holder.run("rollback")
        levels = [future.result(timeout=60) for future in nodes + ours]

    assert set(levels) == {LATEST_LEVEL}
    assert_same_schema(empty_database, database)
    assert installer_of(empty_database) == "node"


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("version", "first"), UPGRADES)
@pytest.mark.feature("F24")
def test_fifty_installers_at_once_upgrade_one_schema(empty_database, database, version, first):
    node_install(empty_database.url, version=version, schema=empty_database.schema)

    # No session can insert a level while this lock is held.
    levels = install_all(empty_database, ":schema.migrations", first)

    assert set(levels) == {LATEST_LEVEL}
    assert_same_schema(empty_database, database)


def install_all(database, table: str, first: str) -> list[int]:
    """Hold a lock that all installers need until all wait for it, those of `first` in front.

    Being in front is an advantage, not a promise: PostgreSQL wakes all of them at once.
    """
    kinds = {"python": start_python, "node": start_nodes}
    order = [kinds.pop(first), *kinds.values()]
    holder, watcher = (Sql(database.dsn, database.schema) for _ in range(2))
    # The lock goes first when something fails: the threads could not end otherwise.
    with ThreadPoolExecutor(ALL) as executor, closing(watcher), closing(holder):
        holder.run("begin")
        holder.run(f"lock table {table} in share mode")
        installing: list[Future[int]] = []
        for start in order:
            before = count_waiting(watcher)
            started, count = start(executor, database)
            installing += started
            wait_for_waiting(watcher, before + count)
        holder.run("commit")
        return [future.result(timeout=60) for future in installing]


def stop_before_level(holder: Sql, level: int) -> None:
    """Make an empty ledger in which no installer passes that level until the holder rolls back."""
    holder.run("create schema :schema")
    holder.run(
        "create table :schema.migrations (id int primary key, "
        "ts timestamptz not null default now(), breaking boolean not null default false)"
    )
    holder.run("begin")
    holder.run("insert into :schema.migrations (id) values ($1)", level)


def wait_for_readers(watcher: Sql, count: int) -> None:
    """Wait until that many Python installers have read the ledger."""
    deadline = time.monotonic() + 50
    readers: set[int] = set()
    while len(readers) < count:
        assert time.monotonic() < deadline, f"only {len(readers)} of {count} read the ledger"
        rows = watcher.run(
            "select pid from pg_stat_activity where application_name = 'graphile-worker' "
            "and datname = current_database() and query like '%filter (where breaking)%'"
        )
        readers |= {pid for (pid,) in rows}
        time.sleep(0.02)


def wait_for_waiting(watcher: Sql, count: int) -> None:
    deadline = time.monotonic() + 50
    while (waiting := count_waiting(watcher)) < count:
        assert time.monotonic() < deadline, f"only {waiting} of {count} installers came to the lock"
        time.sleep(0.02)


def start_python(executor, database, **timeout: float) -> tuple[list["Future[int]"], int]:
    """Threads with a database each, and one event loop with many."""
    started = [executor.submit(install_blocking, database, **timeout) for _ in range(THREADS)]
    started.append(executor.submit(asyncio.run, install_async(database, **timeout)))
    return started, THREADS + ASYNC


def start_nodes(executor, database) -> tuple[list["Future[int]"], int]:
    started = [executor.submit(install_with_node, database) for _ in range(NODES)]
    return started, NODES


def install_blocking(database, **timeout: float) -> int:
    schemas = Schemas.from_names(database.schema)
    with closing(SyncPsycopgDatabase(database.dsn, schemas)) as db:
        return run_plan_sync(db, plan_migrate(schemas, (), **timeout))


def install_with_node(database) -> int:
    # Several at once on a busy machine may take over a second to exit, for which the reference sets
    # a bad status although it is done: its word counts.
    done = node_worker("0.18", database.url, "--schema-only", schema=database.schema)
    assert done.stdout.startswith("Schema updated"), done.stdout + done.stderr
    return LATEST_LEVEL


async def install_async(database, **timeout: float) -> int:
    schemas = Schemas.from_names(database.schema)

    async def install() -> int:
        db = PsycopgDatabase(database.dsn, schemas)
        try:
            return await run_plan(db, plan_migrate(schemas, (), **timeout))
        finally:
            await db.close()

    levels = set(await asyncio.gather(*(install() for _ in range(ASYNC))))
    assert len(levels) == 1
    return levels.pop()


def installer_of(database) -> str:
    """Who won: we enter all levels in one transaction, the reference each in its own."""
    sql = Sql(database.dsn, database.schema)
    with closing(sql):
        moments = sql.value("select count(distinct ts) from :schema.migrations")
    return "python" if moments == 1 else "node"


def assert_same_schema(installed, plain) -> None:
    for read in (read_ledger, read_catalogue, read_companion):
        assert read(installed.dsn, installed.schema) == read(plain.dsn, plain.schema)
