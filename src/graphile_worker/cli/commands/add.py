"""`graphile-worker add`: add a job from the command line."""

import json
import sys
from datetime import datetime, timedelta
from typing import Any

import click

from graphile_worker.cli.arguments import WHEN
from graphile_worker.cli.commands.jobs import json_option
from graphile_worker.cli.flags import current_settings, with_flags_of
from graphile_worker.cli.sources import app_of, client_of
from graphile_worker.jobs import JobKeyMode, JobKeyModeName
from graphile_worker.logs import printable


@click.command()
@click.argument("task")
@click.argument("payload", required=False)
@click.option("--queue-name", help="Run one after the other with others of that name.")
@click.option("--run-at", type=WHEN, help="When: 10m from now, or 2026-08-01T10:00Z.")
@click.option("--max-attempts", type=int, help="How many there may be (default: 25).")
@click.option("--priority", type=int, help="Lower goes first (default: 0).")
@click.option("--job-key", help="Replace the job that has this key.")
@click.option(
    "--job-key-mode",
    type=click.Choice([each.value for each in JobKeyMode]),
    help="How that is done.",
)
@click.option("--flag", "flags", multiple=True, help="Workers that forbid it skip the job.")
@json_option
@with_flags_of("app", "connection", "schema", "ext_schema")
def add(
    task: str,
    payload: str | None,
    queue_name: str | None,
    run_at: datetime | timedelta | None,
    max_attempts: int | None,
    priority: int | None,
    job_key: str | None,
    job_key_mode: JobKeyModeName | None,
    flags: tuple[str, ...],
    as_json: bool,
) -> None:
    """Add a job: its task and its payload in JSON, or - to read that from standard input.

    With --app, the options and checks of the task apply if the app defines it.
    """
    given = _payload(payload)
    settings = current_settings()
    app = app_of(settings)
    with client_of(settings.with_app(app), app) as client:
        job = client.add_job(
            task,
            given,
            queue_name=queue_name,
            run_at=run_at,
            max_attempts=max_attempts,
            priority=priority,
            job_key=job_key,
            job_key_mode=job_key_mode,
            flags=flags or None,
        )
    if as_json:
        click.echo(json.dumps({"id": job.id, "task": task, "run_at": job.run_at.isoformat()}))
    else:
        click.echo(f"added job {job.id} ({printable(job.task_identifier)})")


def _payload(text: str | None) -> Any:
    if text is None:
        return None
    try:
        text = sys.stdin.read() if text == "-" else text
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"the payload is not JSON: {error}") from None


def _refuse(name: str) -> None:
    raise ValueError(f"there is no {name}")
