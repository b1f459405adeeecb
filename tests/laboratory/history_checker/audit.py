"""Let the database record its own history, and read that record."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg

from graphile_worker._sql.identifiers import derive_companion_schema
from tests.laboratory.history_checker.history import (
    Change,
    CrontabRow,
    Effect,
    Final,
    History,
    JobRow,
    KeptAttempt,
    KeptOutcome,
    QueueRow,
    Row,
)

_SQL = Path(__file__).with_name("audit.sql").read_text(encoding="utf-8")

_CHANGES = """
select seq, extract(epoch from at)::float8, xid, kind::text, op::text, app, pid, old, new
from gw_audit.changes
order by seq
"""

_EFFECTS = (
    "select job_id, attempt, extract(epoch from at)::float8 from gw_audit.effects order by at"
)


_OUTCOMES = """
select job_id, task_identifier, pool_id, attempts, succeeded, result::text
from {}.outcomes
order by job_id, finished_at
"""
_ATTEMPTS = "select job_id, pool_id, attempt from {}.attempts order by job_id, attempt"


def install_audit(dsn: str, schema: str) -> None:
    """Record every change from now on; rows that exist already are recorded as seen before."""
    with psycopg.connect(dsn) as connection:
        connection.execute(_SQL.replace(":schema", _quoted(schema)).encode())


def read_audit(dsn: str, schema: str, *, with_final: bool = True) -> History:
    """Return the recorded history, with the present rows of the tables."""
    history = History()
    with psycopg.connect(dsn) as connection:
        # All queries read the same snapshot.
        connection.execute("set transaction isolation level repeatable read")
        history.changes = list(_read_changes(connection))
        history.effects = [Effect(*row) for row in connection.execute(_EFFECTS)]
        history.tasks = _read_tasks(connection, schema)
        _read_kept(connection, derive_companion_schema(schema), history)
        if with_final:
            history.final = _read_final(connection, schema)
    return history


def _read_changes(connection: psycopg.Connection[Any]) -> Iterator[Change]:
    reader = _Reader()
    with connection.cursor(name="gw_audit_changes") as cursor:
        cursor.itersize = 10_000
        cursor.execute(_CHANGES)
        for seq, at, xid, kind, op, app, pid, old, new in cursor:
            before, after = reader.read(kind, old, new)
            yield Change(seq, at, xid, sys.intern(op), sys.intern(app), pid, before, after)  # type: ignore[arg-type]


class _Reader:
    """Parses rows. The old row is nearly always the new row of the change before."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, Any], tuple[str, Row]] = {}

    def read(self, kind: str, old: str | None, new: str | None) -> tuple[Row | None, Row | None]:
        if new is not None:
            after = _MAKE[kind](json.loads(new))
            name = (kind, after[0])
            before = self._before(name, kind, old)
            self._last[name] = (new, after)
            return before, after
        assert old is not None
        # A deleted row has only the old text, which begins with the id.
        name = (kind, json.loads(old)[0])
        before = self._before(name, kind, old)
        self._last.pop(name, None)
        return before, None

    def _before(self, name: tuple[str, Any], kind: str, old: str | None) -> Row | None:
        if old is None:
            return None
        text, row = self._last.get(name, (None, None))
        return row if text == old else _MAKE[kind](json.loads(old))


def _job(values: list[Any]) -> JobRow:
    # JSON has infinity only as a string.
    values[5] = float(values[5])
    return JobRow._make(values)


_MAKE: dict[str, Callable[[list[Any]], Row]] = {
    "j": _job,
    "q": QueueRow._make,
    "c": CrontabRow._make,
}


def _read_tasks(connection: psycopg.Connection[Any], schema: str) -> dict[int, str]:
    query = f"select id, identifier from {_quoted(schema)}._private_tasks"
    return dict(connection.execute(query.encode()).fetchall())


def _read_kept(connection: psycopg.Connection[Any], schema: str, history: History) -> None:
    """Read outcomes and attempts, if the schema has tables for them."""
    name = _quoted(schema)
    found = connection.execute("select to_regclass(%s)", (f"{name}.outcomes",)).fetchone()
    if found is None or found[0] is None:
        return
    outcomes = connection.execute(_OUTCOMES.format(name).encode())
    history.outcomes = [KeptOutcome(*row) for row in outcomes]
    attempts = connection.execute(_ATTEMPTS.format(name).encode())
    history.attempts = [KeptAttempt(*row) for row in attempts]


def _read_final(connection: psycopg.Connection[Any], schema: str) -> Final:
    jobs = _texts(connection, "job", f"{_quoted(schema)}._private_jobs")
    queues = _texts(connection, "queue", f"{_quoted(schema)}._private_job_queues")
    return Final(
        jobs=tuple(_job(json.loads(text)) for text in jobs),
        queues=tuple(QueueRow._make(json.loads(text)) for text in queues),
    )


def _texts(connection: psycopg.Connection[Any], kind: str, table: str) -> list[str]:
    """Return the rows of a table in the form in which changes record them."""
    found = connection.execute("select gw_audit.expression(%s, 'seen')", (kind,)).fetchone()
    assert found is not None
    query = f"select {found[0]} from {table} as seen"
    return [text for (text,) in connection.execute(query.encode())]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
