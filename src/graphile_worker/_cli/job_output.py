"""Looking at jobs: `jobs list`, `jobs show` and `jobs why`."""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
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
from graphile_worker._cli.settings.resolve import open_database
from graphile_worker._db.database import run_plan_sync
from graphile_worker._support.durations import format_duration
from graphile_worker._support.logs import make_printable
from graphile_worker.errors import GraphileWorkerError
from graphile_worker.jobs import Job
from graphile_worker.ops.explain import Explanation, plan_explain
from graphile_worker.ops.filters import Filter, parse_filter
from graphile_worker.ops.search import JobPage, ListedJob, QueryLimits, plan_list_jobs
from graphile_worker.ops.states import LOCKED_STATES, JobState, estimate_failed_at

HIDDEN_ROWS_MESSAGE = (
    "row level security hides all jobs from this role: the list is empty, the queue may not be. "
    "Look as a role with policies; `graphile-worker doctor` says more"
)

JOB_HEADERS = ("id", "task", "queue", "state", "when", "run at", "attempts", "key", "error")


class NoSuchJob(GraphileWorkerError):
    """It is done, or was removed."""

    def __init__(self, *job_ids: int) -> None:
        listed = ", ".join(map(str, job_ids))
        if len(job_ids) == 1:
            super().__init__(f"there is no job {listed}: it is done, or was removed")
        else:
            super().__init__(f"there are no jobs {listed}: they are done, or were removed")


def build_filter(texts: Sequence[str]) -> Filter:
    """What several texts say together."""
    wanted = Filter()
    for text in texts:
        wanted = wanted & parse_filter(text)
    return wanted


def print_job_list(
    settings: Settings,
    job_filter: Filter,
    *,
    limit: int,
    before: int | None,
    newest: int | None,
    limits: QueryLimits,
    as_json: bool,
) -> None:
    """A page of the jobs that are meant."""
    more: dict[str, Any] = {"limit": limit, "before": before, "newest": newest}
    with open_database(settings) as database:
        plan = plan_list_jobs(job_filter, database.schemas, limits=limits, **more)
        page = run_plan_sync(database, plan)
    if page.has_hidden_rows:
        click.echo(f"graphile-worker: {HIDDEN_ROWS_MESSAGE}", err=True)
    if as_json:
        last = page.jobs[-1].id if page.has_more else None
        print_json({"now": page.now, "jobs": page.jobs, "before": last})
        return
    _print_page(page)


def _print_page(page: JobPage) -> None:
    if not page.jobs or page.now is None:
        click.echo("no jobs", err=True)
        return
    print_jobs(page.jobs, page.now)
    if page.has_more:
        click.echo(f"there are more: --before {page.jobs[-1].id}", err=True)


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
    """What its state makes one ask first: for how long, in how long, since when."""
    if job.state in LOCKED_STATES:
        return f"for {format_duration(_clamp_to_zero(now - (job.locked_at or now)))}"
    if job.state in (JobState.RETRYING, JobState.SCHEDULED):
        return f"in {format_duration(_clamp_to_zero(job.run_at - now))}"
    if job.state is JobState.FAILED:
        return f"failed {format_duration(_clamp_to_zero(now - (job.failed_at or now)))} ago"
    return f"due {format_duration(_clamp_to_zero(now - job.run_at))} ago"


def _clamp_to_zero(span: timedelta) -> timedelta:
    return max(span, timedelta(0))


def print_job(settings: Settings, job_id: int, *, as_json: bool) -> None:
    """All that is known of a job."""
    found = _explain(settings, job_id)
    if as_json:
        print_json(_build_json(found))
        return
    print_fields(_build_fields(found))


def print_reasons(settings: Settings, job_id: int, *, as_json: bool) -> None:
    """Why it does not run: first the reason that counts, then what else would keep it."""
    found = _explain(settings, job_id)
    if as_json:
        print_json(
            {
                "id": found.job.id,
                "task": found.job.task_identifier,
                "state": found.state,
                "now": found.now,
                "reasons": found.reasons,
            }
        )
        return
    job, (first, *others) = found.job, found.reasons
    click.echo(
        make_printable(f"job {job.id} ({job.task_identifier}) is {found.state}: {first.sentence}")
    )
    for other in others:
        click.echo(make_printable(f"  also: {other.sentence}"))


def _explain(settings: Settings, job_id: int) -> Explanation:
    with open_database(settings) as database:
        found = run_plan_sync(database, plan_explain(job_id, database.schemas))
    if found is None:
        raise NoSuchJob(job_id)
    return found


def _build_fields(explanation: Explanation) -> dict[str, Any]:
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
    }


def _get_failed_at(explanation: Explanation) -> datetime:
    job = explanation.job
    return estimate_failed_at(
        run_at=job.run_at, updated_at=job.updated_at, attempts=job.attempts, now=explanation.now
    )


def _format_time(moment: datetime, now: datetime) -> str:
    if moment > now:
        return f"{format_time(moment)}, in {format_duration(moment - now)}"
    return f"{format_time(moment)}, {format_duration(now - moment)} ago"


def _format_payload(job: Job) -> str:
    try:
        return json.dumps(job.payload, indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return job.payload_text


def _build_json(explanation: Explanation) -> dict[str, Any]:
    job = explanation.job
    names = ("id", "queue_name", "key", "priority", "attempts", "max_attempts", "last_error")
    moments = ("run_at", "created_at", "updated_at", "locked_at", "locked_by", "revision")
    return {
        "task": job.task_identifier,
        "state": explanation.state,
        "now": explanation.now,
        **{name: getattr(job, name) for name in (*names, *moments)},
        "failed_at": _get_failed_at(explanation) if explanation.state is JobState.FAILED else None,
        "flags": sorted(job.flags),
        "payload": _payload_to_json(job),
        "reasons": to_json(explanation.reasons),
    }


def _payload_to_json(job: Job) -> Any:
    """As JSON has it; what cannot be read, or be written again, as its text."""
    try:
        json.dumps(job.payload, allow_nan=False)
        return to_json(job.payload)
    except (ValueError, RecursionError):
        return job.payload_text
