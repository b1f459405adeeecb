"""One fetch of 1, 100 and 500 jobs on every table, against the clean table of its kind.

Each fetch is a transaction that is rolled back, so that all of them find the same. What is timed is
the statement and its rows, as a worker sends it: over and over on one connection, prepared. Clean
and other table take turns, and the ratio is the median of the turns' ratios.

Then our own indexes are dropped, and ours without them and the reference's statement, which the npm
package itself is asked for, take turns on what is left.
"""

import json
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import click
import psycopg
from psycopg import sql

from benchmarks.contenders.node import PACKAGE
from benchmarks.contenders.ours import SCHEMA, Ours
from benchmarks.processes import ROOT
from benchmarks.rounds import rounded
from benchmarks.server import Database, Server
from benchmarks.tables import CLEAN, TABLES, Table, build
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.claim import (
    claim_jobs,
    claim_jobs_unindexed,
    claim_plain_jobs,
    claim_soonest_jobs,
)
from graphile_worker._sql.query import Query
from graphile_worker._sql.render import render_bytes
from tests.support.tools import NODE

SIZES = (1, 100, 500)

# After so many a server uses one plan for all, if it ever does; but nobody waits longer than that.
WARM_UP = 12
WARM_UP_SECONDS = 5.0

OUR_INDEXES = """
    select schemaname, indexname from pg_indexes
    where schemaname = 'graphile_worker' and starts_with(indexname, 'gwpy_')
"""

Fetch = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Statement:
    """A fetch: its text, and what it is given beside."""

    text: bytes
    args: tuple[object, ...]


def matrix(
    server: Server,
    *,
    names: Sequence[str] = (),
    sizes: Sequence[int] = SIZES,
    fetches: int = 7,
    scale: float = 1.0,
) -> dict[str, Any]:
    chosen = [table for table in TABLES if not names or table.name in names]
    with ExitStack() as stack:
        cleans = {
            kind: stack.enter_context(_built(server, table, 1.0)) for kind, table in CLEAN.items()
        }
        measured = [
            _table(server, table, cleans[table.kind], sizes, fetches, scale)
            for table in [*CLEAN.values(), *chosen]
        ]
    return {"settings": {"fetches": fetches, "scale": scale}, "tables": measured}


def _table(
    server: Server,
    table: Table,
    clean: Database,
    sizes: Sequence[int],
    fetches: int,
    scale: float,
) -> dict[str, Any]:
    with _built(server, table, scale) as database:
        cells = {str(size): _cell(database, table, clean, size, fetches) for size in sizes}
        with database.connected() as connection:
            had_indexes = _drop_our_indexes(connection)
        for size in sizes:
            cells[str(size)] |= _beside(database, table, size, fetches, had_indexes)
    for jobs, cell in cells.items():
        click.echo(f"{table.name}, {jobs}: {cell}", err=True)
    return {"name": table.name, "label": table.label, "kind": table.kind, "cells": cells}


def _cell(
    database: Database, table: Table, clean: Database, size: int, fetches: int
) -> dict[str, Any]:
    """Ours on this table and on the clean one, in turn."""
    with (
        _fetching(
            database, lambda tasks: [*cheap(tasks, size), ours(tasks, size)], table.tasks
        ) as here,
        _fetching(clean, lambda tasks: [*cheap(tasks, size), ours(tasks, size)], 1) as there,
    ):
        turns = _turns([here, there], fetches)
    return {
        "ms": _median_ms(mine for mine, _ in turns),
        "clean_ms": _median_ms(theirs for _, theirs in turns),
        "ratio": rounded(statistics.median(mine / theirs for mine, theirs in turns)),
    }


def _beside(
    database: Database, table: Table, size: int, fetches: int, had_indexes: bool
) -> dict[str, Any]:
    """Ours and the reference's on this table, without indexes of ours."""
    claim = reference_claim(size)
    with (
        _fetching(
            database, lambda tasks: [*cheap(tasks, size), ours_unindexed(tasks, size)], table.tasks
        ) as mine,
        _fetching(
            database, lambda tasks: [Statement(claim, ("pool", tasks))], table.tasks
        ) as theirs,
    ):
        turns = _turns([mine, theirs], fetches)
    found = {"reference_ms": _median_ms(each for _, each in turns)}
    if had_indexes:
        found["without_indexes_ms"] = _median_ms(each for each, _ in turns)
    return found


def plain(tasks: list[int], size: int) -> Statement:
    return _rendered(claim_plain_jobs("pool", dict.fromkeys(tasks, "task"), limit=size))


def soonest(tasks: list[int], size: int) -> Statement:
    return _rendered(claim_soonest_jobs("pool", dict.fromkeys(tasks, "task"), limit=size))


def cheap(tasks: list[int], size: int) -> list[Statement]:
    return [plain(tasks, size), soonest(tasks, size)]


def ours(tasks: list[int], size: int) -> Statement:
    return _rendered(claim_jobs("pool", dict.fromkeys(tasks, "task"), limit=size))


def ours_unindexed(tasks: list[int], size: int) -> Statement:
    return _rendered(claim_jobs_unindexed("pool", dict.fromkeys(tasks, "task"), limit=size))


def _rendered(query: Query[Any]) -> Statement:
    return Statement(render_bytes(query.statement, Schemas.from_names(SCHEMA)), query.args)


def reference_claim(size: int) -> bytes:
    program = ROOT / "benchmarks" / "programs" / "node_claim.mjs"
    command = [str(NODE), str(program), str(PACKAGE), SCHEMA, str(size)]
    done = subprocess.run(command, capture_output=True, check=True)
    text: str = json.loads(done.stdout)[str(size)]
    return text.encode()


@contextmanager
def _built(server: Server, table: Table, scale: float) -> Iterator[Database]:
    contender = Ours()
    with server.database(contender.kind, contender.install) as database:
        with database.connected() as connection:
            build(connection, table, scale)
        yield database


@contextmanager
def _fetching(
    database: Database, statements: Callable[[list[int]], list[Statement]], tasks: int
) -> Iterator[Fetch]:
    """A connection as a worker has it, and a fetch on it that leaves nothing behind.

    With the first statement that finds as many jobs as the last: the usual one, for a worker.
    """
    with psycopg.connect(database.url, autocommit=True) as connection:
        known = connection.execute(
            "select id from graphile_worker._private_tasks order by id limit %s", (tasks,)
        )
        cursor = psycopg.RawCursor(connection)

        def fetched(asked: Statement) -> tuple[float, int]:
            # Behind the driver's back: it forgets what it has prepared when it sees a rollback.
            connection.pgconn.exec_(b"begin")
            began = time.perf_counter()
            rows = cursor.execute(asked.text, asked.args).fetchall()
            taken = time.perf_counter() - began
            connection.pgconn.exec_(b"rollback")
            return taken, len(rows)

        given = statements([row[0] for row in known])
        enough = fetched(given[-1])[1]
        chosen = next(asked for asked in given if fetched(asked)[1] >= enough)

        def fetch() -> float:
            taken, found = fetched(chosen)
            assert found, "there are jobs to be found"
            return taken

        _warm_up(fetch)
        yield fetch


def _warm_up(fetch: Fetch) -> None:
    deadline = time.monotonic() + WARM_UP_SECONDS
    for _ in range(WARM_UP):
        fetch()
        if time.monotonic() > deadline:
            return


def _turns(fetches: Sequence[Fetch], count: int) -> list[tuple[float, ...]]:
    return [tuple(fetch() for fetch in fetches) for _ in range(count)]


def _median_ms(seconds: Iterator[float]) -> float:
    return rounded(statistics.median(seconds) * 1000)


def _drop_our_indexes(connection: psycopg.Connection) -> bool:
    indexes = connection.execute(OUR_INDEXES).fetchall()
    for schema, index in indexes:
        connection.execute(sql.SQL("drop index {}").format(sql.Identifier(schema, index)))
    return bool(indexes)
