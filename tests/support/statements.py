"""Run every statement of the library once, with sample arguments."""

import re
from importlib.resources import files
from typing import Any

import psycopg

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.render import ParameterStyle, render
from graphile_worker._sql.statement import Clause, Condition, Statement
from tests.rules.test_statements import STATEMENTS, _sample_query

CONDITIONS = sorted(
    path.name.removesuffix(".sql")
    for path in (files("graphile_worker._sql") / "conditions").iterdir()
)
JOB_SEARCHES = ("count_jobs", "count_some_jobs", "find_job_ids", "list_jobs")
OUTCOME_SEARCHES = (
    "list_failed_outcomes",
    "list_outcomes",
    "list_task_outcomes",
    "sample_outcomes",
    "summarize_outcomes",
)


def list_conditions(statement: str) -> list[Clause]:
    """List the conditions that a statement can have: on jobs, or on ended jobs."""
    is_ended = statement in OUTCOME_SEARCHES
    chosen = [name for name in CONDITIONS if name.startswith("ended_") == is_ended]
    return [Clause((Condition(name),)) for name in chosen]


# Arguments for statements that read jobs from JSON, of which the samples have none.
KEPT = (
    '[{"id": 1, "task": "task", "age": 2, "duration": 1, "keep": 1, "has_attempt": true, '
    '"has_payload": true}]'
)
JOBS: dict[str, tuple[object, ...]] = {
    "add_jobs": ('[{"identifier": "task", "delay": 1, "preserve_run_at": false}]', 1),
    "insert_job": ("task", None, None, None, 1, None, None, None, "{1,2,3,4,5}", True),
    "create_names": ("{task}", "{queue}"),
    "insert_jobs": ("{task}", *[None] * 7, "{1,2,3,4,5}", True),
    "upsert_jobs": ("{task}", *[None] * 7, "{1,2,3,4,5}", "{key}", "{key}", 1),
    "dedupe_job": ("{task}", *[None] * 7, "{1,2,3,4,5}", "{key}"),
    "fail_claimed_jobs": (
        '[{"id": 1, "attempts": 1, "message": "no", "delay": 1}]',
        "x",
        [1],
        False,
    ),
    "complete_and_keep_jobs": ("{1}", "x", [1], False, KEPT),
    "fail_and_keep_jobs": (
        '[{"id": 1, "attempts": 1, "message": "no", "delay": 1}]',
        "x",
        [1],
        False,
        KEPT,
    ),
    "release_claimed_jobs": (
        '[{"id": 1, "attempts": 1, "keyed": true, "delay": 1}]',
        "x",
        [1],
        False,
    ),
    "schedule_jobs": ('[{"identifier": "item", "task": "task"}]', "2024-02-29 04:30Z"),
    "list_failed_outcomes": ("0", "1", 1, 1),
    "list_outcomes": ("0", "1", 1, 1),
    "list_task_outcomes": ("0", "1", 1, 1, ["task"], ["task"]),
    "sample_outcomes": ("0", "1", 60, "100", [0]),
    "summarize_outcomes": ("0", "1", 60, 1),
    "add_unique_jobs": (
        '[{"identifier": "task", "unique_key": "x", "unique_for": "1 s", "delay": 1}]',
        None,
    ),
    "restore_tokens": ("x", 1, "1709181000.000001"),
    "write_pause": ("task", "x", "x", "x", 1, False),
    "write_sample": ("queue", "[]", 1, 1),
}


def run_all_statements(connection: psycopg.Connection, schemas: Schemas) -> None:
    """Run each statement, and each search with each of its conditions; roll all of it back.

    Some read tables of the Rust worker, which must exist.
    """
    for name in STATEMENTS:
        args = JOBS.get(name) or _sample_query(name).args
        _run_and_roll_back(connection, render(name, schemas, ParameterStyle.NATIVE), args)
    for name in (*JOB_SEARCHES, *OUTCOME_SEARCHES):
        for condition in list_conditions(name):
            statement = Statement.with_clauses(name, [condition])
            text = render(statement, schemas, ParameterStyle.NATIVE)
            _run_and_roll_back(connection, text)


def _run_and_roll_back(
    connection: psycopg.Connection, text: str, args: tuple[Any, ...] | None = None
) -> None:
    numbers = {int(number) for number in re.findall(r"\$(\d+)", text)}
    given = [None] * len(numbers) if args is None else args
    with connection.transaction(force_rollback=True):
        connection.execute(text.encode(), given or None)
