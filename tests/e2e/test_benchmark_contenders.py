"""The queues that we are measured against do what we say they do."""

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from benchmarks.contenders import DIRECT, DRAINERS, WORKERS
from benchmarks.contenders.contender import BATCH, CONCURRENCY
from benchmarks.contenders.engine import Engine
from benchmarks.contenders.node import Node
from benchmarks.contenders.ours import Ours, OursDirect, OursOnce
from benchmarks.contenders.pgqueuer import PgQueuer
from benchmarks.contenders.procrastinate import Procrastinate
from benchmarks.contenders.rust import Rust
from benchmarks.matrix import ours, reference_claim
from benchmarks.processes import environment, running
from benchmarks.server import Database, Server, served
from benchmarks.tables import CLEAN, TABLES, build
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.render import render_bytes
from tests.support.tiers import size

FOLDER = Path(__file__).parents[2] / "benchmarks"
RUST = Path(__file__).parents[2] / "tests" / "interop" / "rust"
JOBS = 1500
MATRIX = [*CLEAN.values(), *TABLES][:: size(gate=4, nightly=1)]


@pytest.fixture(scope="module")
def server(pytestconfig: pytest.Config) -> Iterator[Server]:
    with served(pytestconfig.getoption("--pg")) as server:
        yield server


@pytest.mark.parametrize(
    "contender",
    [Ours(), OursOnce(), OursDirect(), Node(), Engine(1), Engine(2)],
    ids=lambda each: each.name,
)
def test_a_queue_runs_all_of_its_jobs(server, contender):
    with server.database(contender.kind, contender.install) as database:
        drained = contender.drain(database, 300)

        with database.connected() as connection:
            left = connection.execute(Ours.left.encode()).fetchone()

    assert (drained.jobs, left) == (300, (False,))
    assert drained.seconds > 0


@pytest.mark.parametrize("contender", [PgQueuer(), Procrastinate()], ids=lambda each: each.name)
def test_a_queue_from_pypi_runs_its_jobs(server, contender):
    if contender.missing():
        pytest.skip("benchmarks/setup was not run")
    with server.database(contender.kind, contender.install) as database:
        drained = contender.drain(database, 300)

    assert drained.jobs == 300
    assert drained.cpu_seconds is not None
    assert drained.cpu_seconds > 0


@pytest.mark.nightly
@pytest.mark.parametrize("contender", [Rust(), Rust("direct")], ids=lambda each: each.name)
def test_the_rust_worker_runs_all_of_its_jobs_and_adds_some(server, contender):
    if missing := contender.missing():
        pytest.skip(missing)
    with server.database(contender.kind, contender.install) as database:
        drained = contender.drain(database, 200)
        # A worker that runs a sample of the jobs ends when the last one starts.
        left = count_jobs(database)
        told = environment(database, jobs=40, batch=20)
        with running(contender.adding(), told) as program:
            added = program.wait_for_line("in_batches")
        # One before the clock starts, a batch one by one, and all in batches.
        assert count_jobs(database) - left == 1 + 20 + 40

    assert drained.jobs == 200
    assert (drained.cpu_seconds or 0) > 0
    assert min(added["one_by_one"], added["in_batches"]) > 0


def count_jobs(database: Database) -> int:
    with database.connected() as connection:
        [(count,)] = connection.execute("select count(*) from graphile_worker._private_jobs")
    return int(count)


def test_the_reference_really_fetches_and_completes_in_batches(server):
    node = Node()
    with server.database(node.kind, node.install) as database:
        node.fill(database, JOBS)
        told = environment(database, jobs=JOBS, concurrency=CONCURRENCY, batch=BATCH)
        with database.connected() as watcher, running(node.working(), told) as program:
            last = program.wait_for_line("last")
            node.emptied(watcher)
        with database.connected() as connection:
            # Statistics of a session are there once it has ended.
            connection.execute("select pg_stat_clear_snapshot(), pg_sleep(1)")
            [transactions] = connection.execute(
                "select xact_commit from pg_stat_database where datname = current_database()"
            ).fetchone() or [0]

    assert last["largest_fetch"] == BATCH
    assert transactions < JOBS / 2


def test_the_engine_runs_our_own_statements(server):
    with server.database("ours", Ours().install) as database:
        Engine(1).drain(database, 10)
        with database.connected() as connection:
            [source] = connection.execute(
                "select prosrc from pg_proc where proname = 'drain'"
            ).fetchone() or [""]

    for name in ("claim_plain_jobs", "claim_jobs", "complete_claimed_jobs"):
        assert _without_parameters(_text(name), r"\$\d+") in _without_parameters(
            source, r"(?:claim_plain_jobs|claim_jobs|complete_claimed_jobs)_\d+|\btaken_ids(?=::)"
        )


def _text(name: str) -> str:
    return render_bytes(name, Schemas.from_names("graphile_worker")).decode()


def _without_parameters(text: str, parameter: str) -> str:
    return re.sub(parameter, "?", text)


def test_the_statement_of_the_reference_comes_from_its_package():
    assert b"limit 1\n" in reference_claim(1)
    assert b"limit 100\n" in reference_claim(100)


@pytest.mark.parametrize("table", MATRIX, ids=lambda table: table.name)
def test_a_table_of_the_matrix_has_jobs_to_be_found(server, table):
    with server.database("ours", Ours().install) as database, database.connected() as connection:
        build(connection, table, 0.001)
        known = connection.execute(
            "select array_agg(id order by id) from graphile_worker._private_tasks "
            "where substr(identifier, 6)::int < %s",
            (table.tasks,),
        ).fetchone()
        assert known is not None
        statement = ours(known[0], 100, table.forbidden_flags)
        taken = psycopg.RawCursor(connection).execute(statement.text, statement.args).fetchall()

    assert len(taken) == 100


def test_the_names_of_contenders_are_different():
    for group in (WORKERS, DRAINERS, DIRECT):
        names = [each.name for each in group]
        assert len(names) == len(set(names))


def test_labels_say_the_versions_that_are_installed():
    pinned = (FOLDER / "requirements.in").read_text(encoding="utf-8")

    for contender in (PgQueuer(), Procrastinate()):
        name, _, version = contender.label.partition(" ")
        assert re.search(rf"^{name}\S*=={re.escape(version)}\.\d+$", pinned, re.M | re.I)
    crates = (RUST / "0.14" / "Cargo.toml").read_text(encoding="utf-8")
    assert re.search(r'^graphile_worker = \{ version = "=0\.14\.\d+"', crates, re.M)
    assert "RS 0.14 " in Rust().label


def test_the_lock_names_packages_and_hashes_but_not_where_they_came_from():
    lock = (FOLDER / "requirements.lock").read_text(encoding="utf-8")

    assert "--hash=sha256:" in lock
    assert "://" not in lock
