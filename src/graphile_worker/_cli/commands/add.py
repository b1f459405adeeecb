"""`graphile-worker add`: add a job from the command line."""

import json
import sys
from datetime import datetime, timedelta
from typing import Any

import click

from graphile_worker._cli.arguments import POSITIVE_DURATION, WHEN, json_option
from graphile_worker._cli.settings.flags import current_settings, setting_flags
from graphile_worker._support.error_format import make_printable
from graphile_worker.jobs import JobKeyMode, JobKeyModeName


@click.command()
@click.argument("task")
@click.argument("payload", required=False)
@click.option("--queue-name", help="Named queue: one job at a time (default: none).")
@click.option(
    "--run-at",
    type=WHEN,
    help="Delay or time: 10m, 2026-08-01T10:00Z (default: now).",
)
@click.option("--max-attempts", type=int, help="Maximum number of attempts (default: 25).")
@click.option("--priority", type=int, help="Priority; lower numbers run first (default: 0).")
@click.option("--job-key", help="Unique key, to deduplicate jobs (default: none).")
@click.option(
    "--job-key-mode",
    type=click.Choice([each.value for each in JobKeyMode]),
    help="What to do if a job already has the key (default: replace).",
)
@click.option("--unique", metavar="KEY", help="Unique key of a window (default: none).")
@click.option(
    "--unique-for",
    type=POSITIVE_DURATION,
    help="Length of that window, for example 1d (default: none).",
)
@click.option("--flag", "flags", multiple=True, metavar="FLAG", help="Flag of the job; repeatable.")
@json_option
@setting_flags("app", "connection", "schema", "ext_schema")
def add(
    task: str,
    payload: str | None,
    queue_name: str | None,
    run_at: datetime | timedelta | None,
    max_attempts: int | None,
    priority: int | None,
    job_key: str | None,
    job_key_mode: JobKeyModeName | None,
    unique: str | None,
    unique_for: timedelta | None,
    flags: tuple[str, ...],
    as_json: bool,
) -> None:
    """Add a job.

    PAYLOAD is JSON, or - to read it from standard input.

    With --app, the options and checks of the task apply if the app defines it.
    """
    # Imports psycopg, which `add --help` does not need.
    from graphile_worker._cli.settings.resolve import open_client, resolve_app

    parsed = _parse_payload(payload)
    settings = current_settings()
    app = resolve_app(settings)
    with open_client(settings.with_app(app), app) as client:
        job = client.add_job(
            task,
            parsed,
            queue_name=queue_name,
            run_at=run_at,
            max_attempts=max_attempts,
            priority=priority,
            job_key=job_key,
            job_key_mode=job_key_mode,
            flags=flags or None,
            unique=unique,
            unique_for=unique_for,
        )
    if as_json:
        answer = {"id": job.id, "task": task, "run_at": job.run_at.isoformat()}
        click.echo(json.dumps(answer | ({"is_duplicate": True} if job.is_duplicate else {})))
    elif job.is_duplicate:
        name = make_printable(job.task_identifier)
        click.echo(f"added nothing: the window of job {job.id} ({name}) is open")
    else:
        click.echo(f"added job {job.id} ({make_printable(job.task_identifier)})")


def _parse_payload(text: str | None) -> Any:
    if text is None:
        return None
    try:
        text = sys.stdin.read() if text == "-" else text
        return json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"the payload is not JSON: {error}") from None


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
