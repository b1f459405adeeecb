"""Looking at jobs: `jobs list`, `jobs show` and `jobs why`."""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import click

from graphile_worker.administration.filters import Filter, parse
from graphile_worker.administration.finding import ListedJob, Page, Patience, listing
from graphile_worker.administration.states import LOCKED, State, failed_at
from graphile_worker.administration.why import Explanation, explaining
from graphile_worker.cli.printing import (
    clock_time,
    plain,
    print_json,
    print_lines,
    print_table,
)
from graphile_worker.cli.settings import Settings
from graphile_worker.cli.sources import database_of
from graphile_worker.db.database import perform_blocking
from graphile_worker.durations import about
from graphile_worker.errors import GraphileWorkerError
from graphile_worker.jobs import Job
from graphile_worker.logs import printable

HIDDEN = (
    "row level security hides all jobs from this role: the list is empty, the queue may not be. "
    "Look as a role with policies; `graphile-worker doctor` says more"
)

HEADS = ("id", "task", "queue", "state", "when", "run at", "attempts", "key", "error")


class NoSuchJob(GraphileWorkerError):
    """It is done, or was removed."""

    def __init__(self, *job_ids: int) -> None:
        listed = ", ".join(map(str, job_ids))
        if len(job_ids) == 1:
            super().__init__(f"there is no job {listed}: it is done, or was removed")
        else:
            super().__init__(f"there are no jobs {listed}: they are done, or were removed")


def filter_of(texts: Sequence[str]) -> Filter:
    """What several texts say together."""
    wanted = Filter()
    for text in texts:
        wanted = wanted & parse(text)
    return wanted


def print_list(
    settings: Settings,
    wanted: Filter,
    *,
    limit: int,
    before: int | None,
    newest: int | None,
    patience: Patience,
    as_json: bool,
) -> None:
    """A page of the jobs that are meant."""
    more: dict[str, Any] = {"limit": limit, "before": before, "newest": newest}
    with database_of(settings) as database:
        plan = listing(wanted, database.schemas, patience=patience, **more)
        page = perform_blocking(database, plan)
    if page.hides_rows:
        click.echo(f"graphile-worker: {HIDDEN}", err=True)
    if as_json:
        last = page.jobs[-1].id if page.has_more else None
        print_json({"now": page.now, "jobs": page.jobs, "before": last})
        return
    _print_page(page)


def _print_page(page: Page) -> None:
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
            _when(job, now),
            None if job.state is State.FAILED else clock_time(job.run_at),
            f"{job.attempts}/{job.max_attempts}",
            job.key,
            job.error,
        )
        for job in jobs
    ]
    print_table(HEADS, rows, right="id attempts")


def _when(job: ListedJob, now: datetime) -> str:
    """What its state makes one ask first: for how long, in how long, since when."""
    if job.state in LOCKED:
        return f"for {about(_positive(now - (job.locked_at or now)))}"
    if job.state in (State.RETRYING, State.SCHEDULED):
        return f"in {about(_positive(job.run_at - now))}"
    if job.state is State.FAILED:
        return f"failed {about(_positive(now - (job.failed_at or now)))} ago"
    return f"due {about(_positive(now - job.run_at))} ago"


def _positive(span: timedelta) -> timedelta:
    return max(span, timedelta(0))


def print_job(settings: Settings, job_id: int, *, as_json: bool) -> None:
    """All that is known of a job."""
    found = _explained(settings, job_id)
    if as_json:
        print_json(_all_of(found))
        return
    print_lines(_lines(found))


def print_reasons(settings: Settings, job_id: int, *, as_json: bool) -> None:
    """Why it does not run: first the reason that counts, then what else would keep it."""
    found = _explained(settings, job_id)
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
        printable(f"job {job.id} ({job.task_identifier}) is {found.state}: {first.sentence}")
    )
    for other in others:
        click.echo(printable(f"  also: {other.sentence}"))


def _explained(settings: Settings, job_id: int) -> Explanation:
    with database_of(settings) as database:
        found = perform_blocking(database, explaining(job_id, database.schemas))
    if found is None:
        raise NoSuchJob(job_id)
    return found


def _lines(found: Explanation) -> dict[str, Any]:
    job, now = found.job, found.now
    locked_at = job.locked_at
    is_failed = found.state is State.FAILED
    return {
        "id": job.id,
        "task": job.task_identifier,
        "state": found.state,
        "why": found.reasons[0].sentence,
        "queue": job.queue_name,
        "key": job.key,
        "priority": job.priority,
        "attempts": f"{job.attempts} of {job.max_attempts}",
        "run at": None if is_failed else _moment(job.run_at, now),
        "failed at": _moment(_failed_at(found), now) if is_failed else None,
        "created at": _moment(job.created_at, now),
        "updated at": _moment(job.updated_at, now),
        "locked at": None if locked_at is None else _moment(locked_at, now),
        "locked by": job.locked_by,
        "revision": job.revision,
        "flags": ", ".join(sorted(job.flags)),
        "payload": _pretty(job),
        "last error": job.last_error,
    }


def _failed_at(found: Explanation) -> datetime:
    job = found.job
    return failed_at(
        run_at=job.run_at, updated_at=job.updated_at, attempts=job.attempts, now=found.now
    )


def _moment(moment: datetime, now: datetime) -> str:
    if moment > now:
        return f"{clock_time(moment)}, in {about(moment - now)}"
    return f"{clock_time(moment)}, {about(now - moment)} ago"


def _pretty(job: Job) -> str:
    try:
        return json.dumps(job.payload, indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return job.payload_text


def _all_of(found: Explanation) -> dict[str, Any]:
    job = found.job
    names = ("id", "queue_name", "key", "priority", "attempts", "max_attempts", "last_error")
    moments = ("run_at", "created_at", "updated_at", "locked_at", "locked_by", "revision")
    return {
        "task": job.task_identifier,
        "state": found.state,
        "now": found.now,
        **{name: getattr(job, name) for name in (*names, *moments)},
        "failed_at": _failed_at(found) if found.state is State.FAILED else None,
        "flags": sorted(job.flags),
        "payload": _payload(job),
        "reasons": plain(found.reasons),
    }


def _payload(job: Job) -> Any:
    """As JSON has it; what cannot be read, or be written again, as its text."""
    try:
        json.dumps(job.payload, allow_nan=False)
        return plain(job.payload)
    except (ValueError, RecursionError):
        return job.payload_text
