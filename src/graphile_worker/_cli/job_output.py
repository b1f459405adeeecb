"""The output of `jobs list`, `jobs show` and `jobs why`."""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import reduce
from typing import Any

import click

from graphile_worker._cli.history_output import (
    build_outcome_fields,
    build_outcome_json,
    format_attempts,
)
from graphile_worker._cli.printing import (
    format_time,
    print_fields,
    print_json,
    print_table,
    to_json,
)
from graphile_worker._cli.settings.layers import Settings
from graphile_worker._cli.settings.resolve import open_database
from graphile_worker._db.database import SyncDatabase, run_plan_sync
from graphile_worker._support.durations import format_duration
from graphile_worker._support.error_format import make_printable
from graphile_worker.errors import GraphileWorkerError
from graphile_worker.jobs import Job
from graphile_worker.ops.explain import Explanation, plan_explain
from graphile_worker.ops.filters import Filter, parse_filter
from graphile_worker.ops.history import (
    HistoryMissing,
    JobHistory,
    format_progress,
    plan_get_job_history,
)
from graphile_worker.ops.search import ListedJob, plan_list_jobs
from graphile_worker.ops.states import LOCKED_STATES, JobState, estimate_failed_at

HIDDEN_ROWS_MESSAGE = (
    "row level security hides all jobs from this role, so the list is empty. "
    "Use a role with policies; `graphile-worker doctor` has details."
)

JOB_HEADERS = ("id", "task", "queue", "state", "when", "run at", "attempts", "key", "error")


class NoSuchJob(GraphileWorkerError):
    """Raised for jobs that were completed or removed."""

    def __init__(self, *job_ids: int) -> None:
        listed = ", ".join(map(str, job_ids))
        if len(job_ids) == 1:
            super().__init__(f"job {listed} does not exist. It was completed or removed.")
        else:
            super().__init__(f"jobs {listed} do not exist. They were completed or removed.")


def parse_id(before: str | None) -> int | None:
    """Parse the position of a list of jobs, which is the id of its last job."""
    if before is None:
        return None
    if not before.removeprefix("-").isdecimal():
        raise click.UsageError(f"--before: expected the id of a job, got {before!r}.")
    return int(before)


def build_filter(texts: Sequence[str]) -> Filter:
    return reduce(Filter.__and__, map(parse_filter, texts), Filter())


def print_job_list(
    settings: Settings, job_filter: Filter, *, as_json: bool, **options: Any
) -> None:
    """Print one page of jobs. The options are those of `plan_list_jobs`."""
    with open_database(settings) as database:
        page = run_plan_sync(database, plan_list_jobs(job_filter, database.schemas, **options))
    if page.has_hidden_rows:
        click.echo(f"graphile-worker: {HIDDEN_ROWS_MESSAGE}", err=True)
    if as_json:
        last = page.jobs[-1].id if page.has_more else None
        print_json({"now": page.now, "jobs": page.jobs, "before": last})
        return
    if page.now is None:
        click.echo("no jobs", err=True)
        return
    print_jobs(page.jobs, page.now)
    if page.has_more:
        click.echo(f"more jobs: add --before {page.jobs[-1].id}", err=True)


def print_jobs(jobs: Sequence[ListedJob], now: datetime) -> None:
    rows = [
        (
            job.id,
            job.task_identifier,
            job.queue_name,
            job.state,
            _format_when(job, now),
            None if job.state is JobState.FAILED else format_time(job.run_at),
            f"{job.attempts}/{job.max_attempts}",
            job.key,
            job.error,
        )
        for job in jobs
    ]
    print_table(JOB_HEADERS, rows, right_aligned="id attempts")


def _format_when(job: ListedJob, now: datetime) -> str:
    """Format the time that matters in the state of a job."""

    def format_span(span: timedelta) -> str:
        return format_duration(max(span, timedelta(0)))

    if job.state in LOCKED_STATES:
        return f"for {format_span(now - (job.locked_at or now))}"
    if job.state in (JobState.RETRYING, JobState.SCHEDULED):
        return f"in {format_span(job.run_at - now)}"
    if job.state is JobState.FAILED:
        return f"failed {format_span(now - (job.failed_at or now))} ago"
    return f"due {format_span(now - job.run_at)} ago"


def print_job(settings: Settings, job_id: int, *, as_json: bool) -> None:
    """Print a job, or what it left if it ended."""
    with open_database(settings) as database:
        explanation = run_plan_sync(database, plan_explain(job_id, database.schemas))
        history = _get_history(database, job_id)
    if explanation is not None:
        print_job_values = print_json if as_json else print_fields
        build = _build_json if as_json else _build_fields
        print_job_values(build(explanation, history))
    elif history is None or not history.outcomes:
        raise NoSuchJob(job_id)
    elif as_json:
        print_json(_build_ended_json(history))
    else:
        print_fields(_build_ended_fields(history))


def _get_history(database: SyncDatabase, job_id: int) -> JobHistory | None:
    try:
        return run_plan_sync(database, plan_get_job_history(job_id, database.schemas))
    except HistoryMissing:
        return None


def _build_ended_fields(history: JobHistory) -> dict[str, Any]:
    job, now = history.outcomes[0], history.now
    return {
        "id": job.job_id,
        "task": job.task_identifier,
        "state": job.state,
        "attempts": job.attempts,
        "created at": _format_time(job.created_at, now),
        "run at": _format_time(job.run_at, now),
        "started at": _format_time(job.started_at, now),
        "finished at": _format_time(job.finished_at, now),
        "took": format_duration(job.duration),
        "worker": job.worker,
        **build_outcome_fields(job),
        "history": format_attempts(history.attempts),
    }


def _build_ended_json(history: JobHistory) -> dict[str, Any]:
    values = build_outcome_json(history.outcomes[0])
    return {
        "task": values.pop("task_identifier"),
        "now": history.now,
        **values,
        "history": to_json(history.attempts),
    }


def print_reasons(settings: Settings, job_id: int, *, as_json: bool) -> None:
    """Print why a job does not run: the main reason, then the others."""
    explanation = _explain(settings, job_id)
    job, reasons = explanation.job, explanation.reasons
    if as_json:
        values = {"id": job.id, "task": job.task_identifier, "state": explanation.state}
        print_json({**values, "now": explanation.now, "reasons": reasons})
        return
    title = f"job {job.id} ({job.task_identifier}) is {explanation.state}: {reasons[0].sentence}"
    click.echo(make_printable(title))
    for reason in reasons[1:]:
        click.echo(make_printable(f"  also: {reason.sentence}"))


def _explain(settings: Settings, job_id: int) -> Explanation:
    with open_database(settings) as database:
        explanation = run_plan_sync(database, plan_explain(job_id, database.schemas))
    if explanation is None:
        raise NoSuchJob(job_id)
    return explanation


def _build_fields(explanation: Explanation, history: JobHistory | None) -> dict[str, Any]:
    job, now = explanation.job, explanation.now
    locked_at = job.locked_at
    is_failed = explanation.state is JobState.FAILED
    return {
        "id": job.id,
        "task": job.task_identifier,
        "state": explanation.state,
        "why": explanation.reasons[0].sentence,
        "queue": job.queue_name,
        "key": job.key,
        "priority": job.priority,
        "attempts": f"{job.attempts} of {job.max_attempts}",
        "run at": None if is_failed else _format_time(job.run_at, now),
        "failed at": _format_time(_get_failed_at(explanation), now) if is_failed else None,
        "created at": _format_time(job.created_at, now),
        "updated at": _format_time(job.updated_at, now),
        "locked at": None if locked_at is None else _format_time(locked_at, now),
        "locked by": job.locked_by,
        "revision": job.revision,
        "flags": ", ".join(sorted(job.flags)),
        "payload": _format_payload(job),
        "last error": job.last_error,
        **_build_history_fields(history, now),
    }


def _build_history_fields(history: JobHistory | None, now: datetime) -> dict[str, Any]:
    if history is None:
        return {}
    progress = history.progress
    fields: dict[str, Any] = {}
    if progress is not None:
        age = format_duration(max(now - progress.updated_at, timedelta(0)))
        fields["progress"] = f"{format_progress(progress)}, {age} ago"
    if history.attempts:
        fields["history"] = format_attempts(history.attempts)
    return fields


def _get_failed_at(explanation: Explanation) -> datetime:
    job = explanation.job
    return estimate_failed_at(
        run_at=job.run_at, updated_at=job.updated_at, attempts=job.attempts, now=explanation.now
    )


def _format_time(time: datetime, now: datetime) -> str:
    if time > now:
        return f"{format_time(time)}, in {format_duration(time - now)}"
    return f"{format_time(time)}, {format_duration(now - time)} ago"


def _format_payload(job: Job) -> str:
    try:
        return json.dumps(job.payload, indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return job.payload_text


def _build_json(explanation: Explanation, history: JobHistory | None) -> dict[str, Any]:
    job = explanation.job
    names = ["id", "queue_name", "key", "priority", "attempts", "max_attempts", "last_error"]
    names += ["run_at", "created_at", "updated_at", "locked_at", "locked_by", "revision"]
    return {
        "task": job.task_identifier,
        "state": explanation.state,
        "now": explanation.now,
        **{name: getattr(job, name) for name in names},
        "failed_at": _get_failed_at(explanation) if explanation.state is JobState.FAILED else None,
        "flags": sorted(job.flags),
        "payload": _payload_to_json(job),
        "reasons": to_json(explanation.reasons),
        "progress": None if history is None else to_json(history.progress),
        "history": [] if history is None else to_json(history.attempts),
    }


def _payload_to_json(job: Job) -> Any:
    """Return the payload, or its text if JSON cannot represent it."""
    try:
        json.dumps(job.payload, allow_nan=False)
        return to_json(job.payload)
    except (ValueError, RecursionError):
        return job.payload_text
