"""A standby without the last commits is promoted: only the jobs of those commits are missing.

With an asynchronous standby, acknowledged jobs may be lost. The other jobs stay as they were, and
workers continue without a restart.
"""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psycopg
import pytest

from graphile_worker import JobSpec, sync
from tests.laboratory.fleet import Fleet, Surroundings
from tests.laboratory.history_checker import (
    Expectations,
    JobRow,
    Journal,
    check,
    install_audit,
    read_audit,
)
from tests.laboratory.load import Enqueuer
from tests.laboratory.servers import Pair, Position
from tests.support.processes import eventually
from tests.support.tiers import size

pytestmark = [pytest.mark.single_version, pytest.mark.timeout(200)]

SCHEMA = "graphile_worker"
BEFORE, AFTER = 300, 100

LEFT = f"select count(*) from {SCHEMA}._private_jobs where is_available or locked_by is not null"


@pytest.mark.parametrize("seed", size(gate=[1], nightly=[1, 2, 3]))
def test_only_jobs_committed_after_the_replayed_position_are_missing(
    seed: int, tmp_path: Path, pytestconfig: pytest.Config, figure: Callable[[str], None]
):
    with Pair(pytestconfig.getoption("--pg"), ["max_connections=100"]) as servers:
        servers.create_database("laboratory")
        dsn = servers.dsn("laboratory")
        with sync.Client(dsn, schema=SCHEMA) as client:
            client.migrate()
        install_audit(dsn, SCHEMA)
        fleet = Fleet(Surroundings(dsn, SCHEMA, tmp_path, threshold=8.0), 2, random.Random(seed))
        fleet.start()
        adding = Adding(dsn, tmp_path)
        try:
            adding.add(BEFORE)
            promotion = servers.promote_with_lost_tail(lambda: adding.add(AFTER))
            eventually(lambda: answer(dsn, LEFT) == 0, "workers go on and end what is left", 90)
            exits = fleet.look()
        finally:
            fleet.stop()
        history = read_audit(dsn, SCHEMA)
        history.read_journals(tmp_path)

    report = check(
        history, Expectations(durable_until=float(promotion.replayed.bytes), exits=exits)
    )
    seen = {change.new.id for change in history.changes if isinstance(change.new, JobRow)}
    acknowledged = {each for add in history.adds for each in add.job_ids}
    figure(f"lost tail, seed {seed}: {len(acknowledged - seen)} of {AFTER} late jobs are missing")
    assert report.violations == 0, "\n".join(report.lines())
    assert len(acknowledged) == BEFORE + AFTER
    assert len(acknowledged - seen) == AFTER


class Adding:
    """Adds jobs one by one, and notes how far the log of the server had come each time."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self._dsn = dsn
        self._enqueuer = Enqueuer("add-0", f"{dsn} application_name=add-0", SCHEMA)
        self._enqueuer.journal = Journal(folder / "add-0.jsonl")

    def add(self, count: int) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            self._enqueuer.position = partial(read_position, connection)
            for _ in range(count):
                assert self._enqueuer.add([JobSpec("work", {})])


def read_position(connection: psycopg.Connection) -> float:
    row = connection.execute("select pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    return float(Position.parse(row[0]).bytes)


def answer(dsn: str, question: str) -> object:
    try:
        with psycopg.connect(dsn) as connection:
            row = connection.execute(question.encode()).fetchone()
    except psycopg.Error:
        return None
    return None if row is None else row[0]
