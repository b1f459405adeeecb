"""What statements cost while a snapshot is held and 40,000 jobs have come and gone.

Rows that were deleted since then cannot be removed, so they lie in front of those that wait. Worse
is a plan that was made for another table: statistics that were taken while no job waited say that
the table is empty, and then a join that reads a whole index looks as good as any other. So each
statement is explained with statistics of four moments, and with a custom and a generic plan; all in
one run, and each rolled back. What is told is how many pages it touched.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click
import psycopg
from psycopg import sql

from benchmarks.contenders.ours import SCHEMA, Ours
from benchmarks.matrix import Statement, ours, plain, reference_claim
from benchmarks.rounds import rounded
from benchmarks.server import Server
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.claim import (
    FailedAttempt,
    ReleasedJob,
    claim_jobs,
    complete_claimed_jobs,
    fail_claimed_jobs,
    release_claimed_jobs,
)
from graphile_worker._sql.query import Query
from graphile_worker._sql.render import render_bytes
from graphile_worker.jobs import Job

SIZES = (1, 100)
ROUND = 1000
PLANS = ("custom", "generic")
POOL = "pool"
PRIMARY_KEY = "the whole primary key"

TASK = "insert into graphile_worker._private_tasks (identifier) values ('noop') returning id"
ADD = """
    insert into graphile_worker._private_jobs (task_id, payload)
    select tasks.id, json_build_object('id', number)
    from graphile_worker._private_tasks as tasks, generate_series(1, %s) as number
"""
CLAIM = "update graphile_worker._private_jobs set locked_by = 'churn', locked_at = now()"
DELETE = "delete from graphile_worker._private_jobs"

Plan = dict[str, Any]

# Brings a table into a state, says of which moment its statistics are, and goes on.
Recipe = Callable[["Bench", int], Iterator[str]]


@dataclass(frozen=True, slots=True)
class Asked:
    """A statement under the name that the result gives it."""

    name: str
    jobs: int
    statement: Statement


@dataclass(frozen=True, slots=True)
class Cell:
    """What one plan of one statement touched."""

    statement: str
    jobs: int
    statistics: str
    plan: str
    buffers: int
    full_scans: tuple[str, ...]

    def told(self) -> dict[str, Any]:
        return {
            "statement": self.statement,
            "jobs": self.jobs,
            "statistics": self.statistics,
            "plan": self.plan,
            "buffers": self.buffers,
            "full_scans": list(self.full_scans),
        }


def snapshot(server: Server, *, jobs: int = 40_000) -> dict[str, Any]:
    cells = [
        cell
        for recipe in (_never_vacuumed, _vacuumed_while_empty)
        for cell in _followed(server, recipe, jobs)
    ]
    return {"settings": {"jobs": jobs, "ready": ROUND}, **judged(cells)}


def judged(cells: Sequence[Cell]) -> dict[str, Any]:
    """The cells; the claims compared; and whether any plan read the whole primary key."""
    return {
        "claims": {str(size): _claim(cells, size) for size in SIZES},
        "reference_scans_primary_key": any(map(_scans_key, filter(_is_reference, cells))),
        "ours_scans_primary_key": any(
            _scans_key(cell) for cell in cells if not _is_reference(cell)
        ),
        "cells": [cell.told() for cell in cells],
    }


def _claim(cells: Sequence[Cell], size: int) -> dict[str, Any]:
    claims = [cell for cell in cells if cell.statement.endswith("claim") and cell.jobs == size]
    theirs = [cell.buffers for cell in claims if _is_reference(cell)]
    mine = [cell.buffers for cell in claims if not _is_reference(cell)]
    return {
        "reference_best": min(theirs),
        "reference_worst": max(theirs),
        "ours_best": min(mine),
        "ours_worst": max(mine),
        "ratio": rounded(max(mine) / min(theirs)),
    }


def _scans_key(cell: Cell) -> bool:
    return PRIMARY_KEY in cell.full_scans


def _is_reference(cell: Cell) -> bool:
    return cell.statement.startswith("reference")


def _followed(server: Server, recipe: Recipe, jobs: int) -> list[Cell]:
    contender = Ours()
    with (
        server.database(contender.kind, contender.install) as database,
        database.connected() as connection,
        database.connected() as holder,
    ):
        bench = Bench(connection, holder, [row[0] for row in connection.execute(TASK)])
        return [cell for when in recipe(bench, jobs) for cell in bench.measured(when)]


def _never_vacuumed(bench: "Bench", jobs: int) -> Iterator[str]:
    """The same ready jobs under statistics of different moments."""
    bench.hold()
    bench.churn(jobs)
    bench.run(ADD, ROUND)
    yield "none"
    bench.run(DELETE)
    bench.run("analyze graphile_worker._private_jobs")
    bench.run(ADD, ROUND)
    yield "of no jobs"
    bench.run("analyze graphile_worker._private_jobs")
    yield f"of {ROUND} jobs"


def _vacuumed_while_empty(bench: "Bench", jobs: int) -> Iterator[str]:
    """Autovacuum came at a moment without jobs, when one index looked as good as another.

    Generic plans were made then, and nothing has told them since that the table has changed.
    """
    bench.run(ADD, jobs)
    bench.run(DELETE)
    bench.run("vacuum (analyze, truncate off) graphile_worker._private_jobs")
    bench.plan()
    bench.hold()
    bench.churn(jobs)
    bench.run(ADD, ROUND)
    yield "of a vacuum without jobs"


class Bench:
    """The session of a worker, beside one that holds a snapshot."""

    def __init__(
        self, connection: psycopg.Connection, holder: psycopg.Connection, tasks: list[int]
    ) -> None:
        # After a rollback psycopg forgets all that is prepared, unless it prepares nothing itself.
        connection.prepare_threshold = None
        self._connection = connection
        self._holder = holder
        self._tasks = tasks
        self._prepared: dict[bytes, str] = {}

    def run(self, statement: str, *args: object) -> None:
        self._connection.execute(statement.encode(), args or None)

    def hold(self) -> None:
        self._holder.execute("begin isolation level repeatable read")
        self._holder.execute("select from graphile_worker._private_jobs")

    def churn(self, jobs: int) -> None:
        for _ in range(jobs // ROUND):
            self.run(ADD, ROUND)
            self.run(CLAIM)
            self.run(DELETE)

    def plan(self) -> None:
        """Make the generic plans of all statements, on the table as it is."""
        for size in SIZES:
            for asked in (*self._claims(size), *self._endings([])):
                self._explained(asked.statement, "generic")

    def measured(self, statistics: str) -> Iterator[Cell]:
        for size in SIZES:
            for plan in PLANS:
                for asked in self._claims(size):
                    with self._connection.transaction(force_rollback=True):
                        yield self._cell(asked, statistics, plan)
                for ending in range(len(ENDINGS)):
                    with self._connection.transaction(force_rollback=True):
                        asked = self._endings(self._taken(size))[ending]
                        yield self._cell(asked, statistics, plan)

    def _claims(self, size: int) -> list[Asked]:
        theirs = Statement(reference_claim(size), (POOL, self._tasks))
        return [
            Asked("reference's claim", size, theirs),
            Asked("our claim", size, plain(self._tasks, size)),
            Asked("our other claim", size, ours(self._tasks, size)),
        ]

    def _endings(self, jobs: list[Job]) -> list[Asked]:
        return [Asked(name, len(jobs), _rendered(end(jobs))) for name, end in ENDINGS.items()]

    def _taken(self, size: int) -> list[Job]:
        """Jobs that this transaction has taken."""
        query = claim_jobs(POOL, dict.fromkeys(self._tasks, "noop"), limit=size)
        asked = _rendered(query)
        cursor = psycopg.RawCursor(self._connection)
        held = query.read(cursor.execute(asked.text, asked.args).fetchall())
        assert len(held) == size
        return [each.job for each in held]

    def _cell(self, asked: Asked, statistics: str, plan: str) -> Cell:
        root = self._explained(asked.statement, plan)
        buffers = root["Shared Hit Blocks"] + root["Shared Read Blocks"]
        cell = Cell(asked.name, asked.jobs, statistics, plan, buffers, tuple(full_scans(root)))
        click.echo(
            f"{cell.statement} of {cell.jobs}, statistics {cell.statistics}, {cell.plan} plan: "
            f"{cell.buffers} {', '.join(cell.full_scans)}",
            err=True,
        )
        return cell

    def _explained(self, statement: Statement, plan: str) -> Plan:
        with self._connection.transaction():
            self.run(f"set local plan_cache_mode = force_{plan}_plan")
            explain = sql.SQL(
                "explain (analyze, buffers, timing off, summary off, format json) execute {} ({})"
            )
            name = sql.Identifier(self._name(statement.text))
            args = sql.SQL(", ").join(map(sql.Literal, statement.args))
            row = self._connection.execute(explain.format(name, args)).fetchone()
        assert row is not None
        root: Plan = row[0][0]["Plan"]
        return root

    def _name(self, text: bytes) -> str:
        """Under which a statement is prepared: once, as a worker does."""
        if text not in self._prepared:
            self._prepared[text] = f"asked_{len(self._prepared)}"
            prepare = f"prepare {self._prepared[text]} as ".encode()
            psycopg.RawCursor(self._connection).execute(prepare + text)
        return self._prepared[text]


ENDINGS: dict[str, Callable[[list[Job]], Query[set[int]]]] = {
    "our finish": lambda jobs: complete_claimed_jobs(POOL, [job.id for job in jobs], []),
    "our fail": lambda jobs: fail_claimed_jobs(
        POOL, [FailedAttempt(job, "it failed") for job in jobs], []
    ),
    "our return": lambda jobs: release_claimed_jobs(POOL, [ReleasedJob(job) for job in jobs], []),
}


def _rendered(query: Query[Any]) -> Statement:
    return Statement(render_bytes(query.statement, Schemas.from_names(SCHEMA)), query.args)


def full_scans(plan: Plan) -> Iterator[str]:
    """Where a plan has read all of the jobs' primary key, or all of their table."""
    if plan["Actual Loops"] == 0:
        return
    if plan.get("Index Name") == "jobs_pkey1" and "Index Cond" not in plan:
        yield PRIMARY_KEY
    if plan["Node Type"] == "Seq Scan" and plan.get("Relation Name") == "_private_jobs":
        yield "the whole table"
    for part in plan.get("Plans", ()):
        yield from full_scans(part)
