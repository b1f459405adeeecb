"""The output of `jobs history`, `jobs list --ended` and `history`."""

import json
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import reduce
from typing import Any

import click

from graphile_worker._cli.printing import (
    format_time,
    print_fields,
    print_json,
    print_table,
    to_json,
)
from graphile_worker._cli.settings.layers import Settings
from graphile_worker._cli.settings.resolve import open_database, resolve_actor
from graphile_worker._db.database import SyncDatabase, run_plan_sync
from graphile_worker._support.durations import format_duration
from graphile_worker._support.text import pluralize
from graphile_worker.errors import GraphileWorkerError
from graphile_worker.ops.filters import Filter, parse_ended_filter
from graphile_worker.ops.history import (
    EndedJob,
    EndedPosition,
    HistoryStatus,
    JobHistory,
    format_progress,
    plan_get_history_status,
    plan_get_job_history,
    plan_list_outcomes,
    plan_prune,
    plan_set_history,
)
from graphile_worker.ops.states import JobState
from graphile_worker.ops.text import format_bytes, summarize_error
from graphile_worker.results import Attempt

ENDED_HEADERS = ("id", "task", "state", "finished at", "ago", "took", "attempts", "error")
EVENT_HEADERS = ("time", "event", "took", "worker", "detail")
SLOT_HEADERS = ("slot", "from", "outcomes", "size", "state")

POSITION_EXPECTED = "a time and an id, as a list prints them: 2026-08-01T10:00:00+00:00,4711"

# The result of a job in the table of its history. Its JSON follows in full.
MAX_RESULT_CHARS = 60


class UnknownJob(GraphileWorkerError):
    """Raised for a job that does not exist and left nothing."""

    def __init__(self, job_id: int) -> None:
        super().__init__(
            f"nothing is known of job {job_id}: it never existed, or it ended or was removed. "
            "Its task keeps no outcomes, a worker for Node or Rust ended it, or its outcome is "
            "older than the time that outcomes are kept."
        )


# Ended jobs


def print_ended_jobs(
    settings: Settings, texts: Sequence[str], *, before: str | None, as_json: bool, **options: Any
) -> None:
    """Print one page of ended jobs. The options are those of `plan_list_outcomes`."""
    terms = reduce(Filter.__and__, map(parse_ended_filter, texts), Filter())
    position = None if before is None else _parse_position(before)
    with open_database(settings) as database:
        plan = plan_list_outcomes(terms, database.schemas, before=position, **options)
        page = run_plan_sync(database, plan)
    following = None if page.next is None else _format_position(page.next)
    if as_json:
        jobs = [build_ended_json(job) for job in page.jobs]
        print_json({"now": page.now, "jobs": jobs, "before": following})
        return
    if not page.jobs:
        click.echo("no ended jobs", err=True)
        return
    rows = [_build_ended_row(job, page.now) for job in page.jobs]
    print_table(ENDED_HEADERS, rows, right_aligned="id ago took attempts")
    if following is not None:
        click.echo(f"more jobs: add --before {following}", err=True)


def _build_ended_row(job: EndedJob, now: datetime) -> tuple[Any, ...]:
    return (
        job.job_id,
        job.task_identifier,
        job.state,
        format_time(job.finished_at),
        _format_span(now - job.finished_at),
        _format_span(job.duration),
        job.attempts,
        job.error,
    )


def build_ended_json(job: EndedJob) -> dict[str, Any]:
    names = ["created_at", "run_at", "started_at", "finished_at", "duration", "worker", "error"]
    return {
        "id": job.job_id,
        "task_identifier": job.task_identifier,
        "state": job.state,
        "attempts": job.attempts,
        **{name: getattr(job, name) for name in names},
        "has_result": job.has_result,
    }


def _format_position(position: EndedPosition) -> str:
    return f"{position.finished_at.isoformat()},{position.job_id}"


def _parse_position(text: str) -> EndedPosition:
    time, _, job_id = text.rpartition(",")
    try:
        position = EndedPosition(datetime.fromisoformat(time), int(job_id))
    except ValueError:
        position = None
    if position is None or position.finished_at.tzinfo is None:
        raise click.UsageError(f"--before: expected {POSITION_EXPECTED}, got {text!r}.")
    return position


def _format_span(span: timedelta) -> str:
    return format_duration(max(span, timedelta(0)))


# One job


def print_job_history(settings: Settings, job_id: int, *, as_json: bool) -> None:
    """Print what became of a job, as a table of events."""
    with open_database(settings) as database:
        history = run_plan_sync(database, plan_get_job_history(job_id, database.schemas))
    if not history.is_known:
        raise UnknownJob(job_id)
    if as_json:
        print_json(_build_history_json(history))
        return
    print_table(EVENT_HEADERS, [row[1] for row in _list_events(history)], right_aligned="took")
    if history.outcomes:
        details = build_outcome_fields(history.outcomes[0])
        if shown := {name: text for name, text in details.items() if text is not None}:
            click.echo()
            print_fields(shown)


def _list_events(history: JobHistory) -> list[tuple[datetime, tuple[Any, ...]]]:
    return sorted(_build_events(history), key=lambda event: event[0])


def _build_events(history: JobHistory) -> Iterator[tuple[datetime, tuple[Any, ...]]]:
    def build(time: datetime, name: str, *rest: Any) -> tuple[datetime, tuple[Any, ...]]:
        cells = (*rest, None, None, None)[:3]
        return time, (format_time(time), name, *cells)

    if history.created_at is not None:
        yield build(history.created_at, "added", None, None, history.task_identifier)
    for attempt in history.attempts:
        took, error = _format_span(attempt.duration), summarize_error(attempt.error)
        yield build(attempt.started_at, f"attempt {attempt.number}", took, attempt.worker, error)
    for job in history.outcomes:
        detail = summarize_error(job.error) if job.error else job.result_text
        detail = None if detail is None else _shorten(detail)
        yield build(job.finished_at, job.state, _format_span(job.duration), job.worker, detail)
    if history.state is not None and not _is_ended(history):
        progress = history.progress
        text = None if progress is None else format_progress(progress)
        yield build(history.now, f"is {history.state}", None, None, text)


def _is_ended(history: JobHistory) -> bool:
    """Return whether the state of the row is that of the last outcome."""
    is_failed = history.state is JobState.FAILED
    return is_failed and bool(history.outcomes) and not history.outcomes[0].succeeded


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_RESULT_CHARS else f"{text[:MAX_RESULT_CHARS]}…"


def build_outcome_fields(job: EndedJob) -> dict[str, str | None]:
    """Build the fields of what a job left: its payload, its result and its error."""
    return {
        "payload": None if job.payload_text is None else _indent(job.payload_text),
        "result": None if job.result_text is None else _indent(job.result_text),
        "error": job.error,
    }


def _indent(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def format_attempts(attempts: Sequence[Attempt]) -> str:
    """Format attempts, one on each line."""
    lines = []
    for each in attempts:
        error = summarize_error(each.error)
        end = f": {error}" if error else ""
        took = _format_span(each.duration)
        lines.append(f"{each.number}  {format_time(each.started_at)}  {took}  {each.worker}{end}")
    return "\n".join(lines)


def _build_history_json(history: JobHistory) -> dict[str, Any]:
    return {
        "id": history.job_id,
        "task": history.task_identifier,
        "state": history.state or (history.outcomes[0].state if history.outcomes else None),
        "now": history.now,
        "created_at": history.created_at,
        "attempts": history.attempts,
        "outcomes": [build_outcome_json(job) for job in history.outcomes],
        "progress": history.progress,
    }


def build_outcome_json(job: EndedJob) -> dict[str, Any]:
    """Return an outcome with its result, and with its payload if it is kept."""
    values = {**build_ended_json(job), "result": _parse_json(job.result_text)}
    if job.payload_text is not None:
        values["payload"] = _parse_json(job.payload_text)
    return values


def _parse_json(text: str | None) -> Any:
    """Return the value, or its text if JSON cannot represent it."""
    if text is None:
        return None
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)
        return to_json(value)
    except (ValueError, RecursionError):
        return text


# How long outcomes are kept


def print_history(settings: Settings, *, as_json: bool) -> None:
    """Print how long outcomes are kept, and the slots that store them."""
    with open_database(settings) as database:
        status = _get_status(database)
    if as_json:
        print_json(_build_status_json(status))
        return
    print_fields(_build_status_fields(status))
    rows = [
        (
            slot.number,
            None if slot.started_at is None else format_time(slot.started_at),
            f"{slot.rows:,}",
            format_bytes(slot.bytes),
            "written to" if slot.is_current else "full",
        )
        for slot in status.slots
        if slot.started_at is not None or slot.rows
    ]
    click.echo()
    print_table(SLOT_HEADERS, rows, right_aligned="slot outcomes size")


def _get_status(database: SyncDatabase) -> HistoryStatus:
    return run_plan_sync(database, plan_get_history_status(database.schemas))


def _build_status_fields(status: HistoryStatus) -> dict[str, Any]:
    oldest = status.oldest_at
    return {
        "keep": format_duration(status.keep),
        "max rows": None if status.max_rows is None else f"{status.max_rows:,}",
        "outcomes": f"about {status.rows:,}",
        "size": format_bytes(status.bytes),
        "oldest": None
        if oldest is None
        else f"{format_time(oldest)}, {_format_span(status.now - oldest)} ago",
        "rotation": _describe_rotation(status),
    }


def _describe_rotation(status: HistoryStatus) -> str:
    state = "up to date"
    if status.is_overdue:
        state = "overdue: run a worker with these tasks, or `graphile-worker history prune`"
    if not status.can_rotate:
        state += ". This role may not empty slots"
    return state


def _build_status_json(status: HistoryStatus) -> dict[str, Any]:
    names = ["now", "keep", "max_rows", "rows", "bytes", "oldest_at", "can_rotate", "is_overdue"]
    return {**{name: getattr(status, name) for name in names}, "slots": status.slots}


def change_history(settings: Settings, *, as_json: bool, **options: Any) -> None:
    """Set how long and how many outcomes are kept. The options are those of `plan_set_history`."""
    with open_database(settings) as database:
        plan = plan_set_history(database.schemas, actor=resolve_actor(settings), **options)
        run_plan_sync(database, plan)
        status = _get_status(database)
    if as_json:
        print_json({"keep": status.keep, "max_rows": status.max_rows})
        return
    count = "" if status.max_rows is None else f", at most about {status.max_rows:,}"
    click.echo(f"outcomes are kept for {format_duration(status.keep)}{count}")


def prune_history(settings: Settings, *, as_json: bool) -> None:
    """Delete outcomes that are kept for too long, and print what was removed."""
    with open_database(settings) as database:
        before = {slot.number: slot for slot in _get_status(database).slots}
        pruned = run_plan_sync(
            database, plan_prune(database.schemas, actor=resolve_actor(settings))
        )
    rows = sum(before[slot].rows for slot in pruned.emptied_slots)
    size = sum(before[slot].bytes for slot in pruned.emptied_slots)
    if as_json:
        values = {"emptied_slots": pruned.emptied_slots, "emptied_rows": rows}
        print_json({**values, "emptied_bytes": size, "deleted_rows": pruned.deleted_rows})
        return
    if not pruned.emptied_slots and not pruned.deleted_rows:
        click.echo("nothing to delete")
    if pruned.emptied_slots:
        slots = pluralize(len(pruned.emptied_slots), "slot")
        click.echo(f"emptied {slots}: about {rows:,} outcomes, {format_bytes(size)}")
    if pruned.deleted_rows:
        count = f"{pruned.deleted_rows:,}"
        click.echo(f"deleted {count} outcomes and attempts that their tasks no longer keep")
