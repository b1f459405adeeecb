"""One fetch of 1, 100 and 500 jobs on every table, against the clean table of its kind.

Each fetch is a transaction that is rolled back, so that all of them find the same. What is timed is
the statement and its rows, as a worker sends it: over and over on one connection, prepared. Clean
and other table take turns, and the ratio is the median of the turns' ratios.

Where jobs that cannot be claimed precede the others, most fetches of a worker search around the
position of the first job that a full scan found. The full scan is timed too.

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
    JobPosition,
    claim_jobs,
    claim_jobs_around,
    claim_jobs_unindexed,
    claim_plain_jobs,
    claim_soonest_jobs,
)
from graphile_worker._sql.query import Query
from graphile_worker._sql.render import render_bytes
from tests.support.tools import NODE

SIZES = (1, 100, 500)

# A server keeps one plan after a few executions, if it ever does. These limit the warm-up.
WARM_UP = 12
WARM_UP_SECONDS = 5.0

OUR_INDEXES = """
    select schemaname, indexname from pg_indexes
    where schemaname = 'graphile_worker' and starts_with(indexname, 'gwpy_')
"""

Fetch = Callable[[], float]
Flags = Sequence[str]


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
        # Later, because each fetch that is rolled back leaves dead rows.
        for size in sizes:
            cells[str(size)] |= _full_scan(database, table, size, fetches)
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
    flags = table.forbidden_flags
    position = _find_position(database, table, size)

    def usual(tasks: list[int]) -> list[Statement]:
        return [*cheap(tasks, size), ours(tasks, size)]

    def statements(tasks: list[int]) -> list[Statement]:
        return usual(tasks) if position is None else [around(tasks, size, position, flags)]

    with (
        _fetching(database, statements, table.tasks) as here,
        _fetching(clean, usual, 1) as there,
    ):
        turns = _turns([here, there], fetches)
    return {
        "ms": _median_ms(mine for mine, _ in turns),
        "clean_ms": _median_ms(theirs for _, theirs in turns),
        "ratio": rounded(statistics.median(mine / theirs for mine, theirs in turns)),
    }


def _full_scan(database: Database, table: Table, size: int, fetches: int) -> dict[str, Any]:
    """Ours where it searches all jobs, which is then rare."""
    if _find_position(database, table, size) is None:
        return {}
    with _fetching(
        database, lambda tasks: [ours(tasks, size, table.forbidden_flags)], table.tasks
    ) as fetch:
        return {"full_scan_ms": _median_ms(fetch() for _ in range(fetches))}


def _find_position(database: Database, table: Table, size: int) -> JobPosition | None:
    """Return the position around which a worker searches after a full scan, if it does."""
    with database.connected() as connection, connection.transaction(force_rollback=True):
        tasks = dict.fromkeys(_task_ids(connection, table.tasks), "task")
        query = claim_jobs(
            "pool", tasks, limit=size, skip_flags=list(table.forbidden_flags) or None
        )
        scan = _rendered(query)
        rows = psycopg.RawCursor(connection).execute(scan.text, scan.args).fetchall()
    behind = (each.job for each in query.read(rows) if each.is_behind_soonest)
    return next(((job.priority, job.run_at) for job in behind), None)


def _beside(
    database: Database, table: Table, size: int, fetches: int, had_indexes: bool
) -> dict[str, Any]:
    """Ours and the reference's on this table, without the indexes of this package."""
    flags = table.forbidden_flags
    claim = reference_claim(size, flags)
    given = (list(flags),) if flags else ()
    with (
        _fetching(
            database,
            lambda tasks: [*cheap(tasks, size, flags), ours_unindexed(tasks, size, flags)],
            table.tasks,
        ) as mine,
        _fetching(
            database, lambda tasks: [Statement(claim, ("pool", tasks, *given))], table.tasks
        ) as theirs,
    ):
        turns = _turns([mine, theirs], fetches)
    found = {"reference_ms": _median_ms(each for _, each in turns)}
    if had_indexes:
        found["without_indexes_ms"] = _median_ms(each for each, _ in turns)
    return found


def plain(tasks: list[int], size: int, flags: Flags = ()) -> Statement:
    return _claiming(claim_plain_jobs, tasks, size, flags)


def soonest(tasks: list[int], size: int, flags: Flags = ()) -> Statement:
    return _claiming(claim_soonest_jobs, tasks, size, flags)


def cheap(tasks: list[int], size: int, flags: Flags = ()) -> list[Statement]:
    return [plain(tasks, size, flags), soonest(tasks, size, flags)]


def around(tasks: list[int], size: int, position: JobPosition, flags: Flags = ()) -> Statement:
    return _claiming(claim_jobs_around, tasks, size, flags, since=position)


def ours(tasks: list[int], size: int, flags: Flags = ()) -> Statement:
    return _claiming(claim_jobs, tasks, size, flags)


def ours_unindexed(tasks: list[int], size: int, flags: Flags = ()) -> Statement:
    return _claiming(claim_jobs_unindexed, tasks, size, flags)


def _claiming(
    claim: Callable[..., Query[Any]], tasks: list[int], size: int, flags: Flags, **more: Any
) -> Statement:
    known = dict.fromkeys(tasks, "task")
    return _rendered(claim("pool", known, limit=size, skip_flags=list(flags) or None, **more))


def _rendered(query: Query[Any]) -> Statement:
    return Statement(render_bytes(query.statement, Schemas.from_names(SCHEMA)), query.args)


def reference_claim(size: int, flags: Flags = ()) -> bytes:
    program = ROOT / "benchmarks" / "programs" / "node_claim.mjs"
    command = [str(NODE), str(program), str(PACKAGE), SCHEMA, json.dumps(list(flags)), str(size)]
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
        cursor = psycopg.RawCursor(connection)

        def fetched(asked: Statement) -> tuple[float, int]:
            # Behind the driver's back: it forgets what it has prepared when it sees a rollback.
            connection.pgconn.exec_(b"begin")
            began = time.perf_counter()
            rows = cursor.execute(asked.text, asked.args).fetchall()
            taken = time.perf_counter() - began
            connection.pgconn.exec_(b"rollback")
            return taken, len(rows)

        given = statements(_task_ids(connection, tasks))
        enough = fetched(given[-1])[1]
        chosen = next(asked for asked in given if fetched(asked)[1] >= enough)

        def fetch() -> float:
            taken, found = fetched(chosen)
            assert found, "there are jobs to be found"
            return taken

        _warm_up(fetch)
        yield fetch


def _task_ids(connection: psycopg.Connection, count: int) -> list[int]:
    known = connection.execute(
        "select id from graphile_worker._private_tasks order by id limit %s", (count,)
    )
    return [row[0] for row in known]


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
