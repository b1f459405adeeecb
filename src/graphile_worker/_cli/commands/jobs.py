"""`graphile-worker jobs`: list jobs, show what became of one, and change them.

Each command imports what it needs when it runs, so that workers start without it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from graphile_worker._cli.arguments import DURATION, FACTOR, POSITIVE_INT, WHEN, json_option
from graphile_worker._cli.settings.flags import (
    Command,
    current_queue_settings,
    reject_flag,
    setting_flags,
)
from graphile_worker._support.renamed import RENAMED_FLAGS

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from graphile_worker.ops.bulk import BulkAction

where_option = click.option(
    "--where", multiple=True, metavar="FILTER", help="Only jobs that match the filter; repeatable."
)
queue_flags = setting_flags("connection", "schema", "ext_schema")
# For commands that change something.
change_flags = setting_flags("connection", "schema", "ext_schema", "actor")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show the jobs that would change, and change nothing."
)
yes_option = click.option(
    "--yes", "is_confirmed", is_flag=True, help="Skip the confirmation prompt."
)


@click.group()
@queue_flags
def jobs() -> None:
    """List jobs, show what became of one, and change them."""


class FilterCommand(click.Command):
    """A command with negated terms as arguments, which click would otherwise parse as options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        from graphile_worker.ops.filters import NEGATED_TERM_PATTERN

        return super().parse_args(
            ctx, [f" {arg}" if NEGATED_TERM_PATTERN.match(arg) else arg for arg in args]
        )


@jobs.command(name="list", cls=FilterCommand)
@click.argument("terms", nargs=-1, metavar="[FILTER]...")
@where_option
@click.option("--ended", is_flag=True, help="List ended jobs whose outcomes are kept.")
@click.option(
    "--limit", type=POSITIVE_INT, default=50, help="Number of jobs to list (default: 50)."
)
@click.option(
    "--before",
    metavar="POSITION",
    help="Continue a list after its last page (default: its start).",
)
@click.option(
    "--newest", type=POSITIVE_INT, help="Search only this many of the newest jobs (default: all)."
)
@click.option(
    "--timeout",
    type=DURATION,
    metavar="DURATION",
    default="10s",
    help="Time limit of the query (default: 10s).",
)
@json_option
@queue_flags
def list_jobs(
    terms: tuple[str, ...],
    where: tuple[str, ...],
    ended: bool,
    limit: int,
    before: str | None,
    newest: int | None,
    timeout: "timedelta",
    as_json: bool,
) -> None:
    """List jobs, newest first.

    Example: graphile-worker jobs list 'task:render_pdf state:failed error:timeout age:>10m'

    Example: graphile-worker jobs list --ended 'task:render_pdf finished:<1h'
    """
    from graphile_worker.ops.search import QueryLimits

    limits = QueryLimits(statement_timeout=timeout)
    if ended:
        from graphile_worker._cli.history_output import print_ended_jobs

        if newest is not None:
            raise click.UsageError("--newest cannot be used with --ended. Add finished:<1h.")
        print_ended_jobs(
            current_queue_settings(),
            (*terms, *where),
            limit=limit,
            before=before,
            limits=limits,
            as_json=as_json,
        )
        return
    from graphile_worker._cli.job_output import build_filter, parse_id, print_job_list

    print_job_list(
        current_queue_settings(),
        build_filter((*terms, *where)),
        limit=limit,
        before=parse_id(before),
        newest=newest,
        limits=limits,
        as_json=as_json,
    )


@jobs.command()
@click.argument("job_id", type=int, metavar="ID")
@json_option
@queue_flags
def show(job_id: int, as_json: bool) -> None:
    """Show a job in full, also one that ended."""
    from graphile_worker._cli.job_output import print_job

    print_job(current_queue_settings(), job_id, as_json=as_json)


@jobs.command(name="history")
@click.argument("job_id", type=int, metavar="ID")
@json_option
@queue_flags
def show_history(job_id: int, as_json: bool) -> None:
    """Show what became of a job: its attempts and outcomes."""
    from graphile_worker._cli.history_output import print_job_history

    print_job_history(current_queue_settings(), job_id, as_json=as_json)


@jobs.command()
@click.argument("job_id", type=int, metavar="ID")
@json_option
@queue_flags
def why(job_id: int, as_json: bool) -> None:
    """Explain why a job does not run."""
    from graphile_worker._cli.job_output import print_reasons

    print_reasons(current_queue_settings(), job_id, as_json=as_json)


def change_options(function: Command) -> Command:
    """Add the options of every command that changes jobs."""
    options: list[Callable[[Command], Command]] = [
        click.argument("ids", nargs=-1, type=int, metavar="[ID]..."),
        where_option,
        click.option("--all", "is_all", is_flag=True, help="Change all jobs of the queue."),
        click.option(
            "--limit",
            type=POSITIVE_INT,
            help="Maximum number of jobs, oldest first (default: all).",
        ),
        click.option(
            "--throttle",
            type=FACTOR,
            metavar="FACTOR",
            help="Pause per batch, as a multiple of its time (default: 4).",
        ),
        reject_flag("--rest", RENAMED_FLAGS["--rest"]),
        dry_run_option,
        json_option,
        change_flags,
    ]
    for option in reversed(options):
        function = option(function)
    return function


@jobs.command()
@change_options
def retry(**options: Any) -> None:
    """Run failed, retrying or scheduled jobs now.

    Failed jobs get a fresh set of attempts.
    """
    from graphile_worker.ops.bulk import RetryAction

    _run_change(RetryAction(), options, verb="retry", past_tense="retried")


@jobs.command()
@click.option("--reason", help="Error to store (default: Manually marked as failed).")
@yes_option
@change_options
def fail(reason: str | None, **options: Any) -> None:
    """Fail jobs permanently."""
    from graphile_worker.ops.bulk import FailAction

    _run_change(
        FailAction(reason), options, verb="fail", past_tense="failed", requires_confirmation=True
    )


@jobs.command()
@yes_option
@change_options
def complete(**options: Any) -> None:
    """Delete jobs as if they had succeeded."""
    from graphile_worker.ops.bulk import CompleteAction

    _run_change(
        CompleteAction(), options, verb="delete", past_tense="deleted", requires_confirmation=True
    )


@jobs.command()
@click.option(
    "--run-at", type=WHEN, help="New delay or time, for example 10m (default: unchanged)."
)
@click.option("--priority", type=int, help="New priority; lower runs first (default: unchanged).")
@click.option("--attempts", type=int, help="New number of attempts made (default: unchanged).")
@click.option(
    "--max-attempts", type=int, help="New maximum number of attempts (default: unchanged)."
)
@change_options
def reschedule(
    run_at: "datetime | timedelta | None",
    priority: int | None,
    attempts: int | None,
    max_attempts: int | None,
    **options: Any,
) -> None:
    """Change the time, priority or attempts of jobs."""
    from graphile_worker.ops.bulk import RescheduleAction

    if (run_at, priority, attempts, max_attempts) == (None,) * 4:
        raise click.UsageError(
            "nothing to change. Pass --run-at, --priority, --attempts or --max-attempts."
        )
    action = RescheduleAction(
        run_at=run_at, priority=priority, attempts=attempts, max_attempts=max_attempts
    )
    _run_change(action, options, verb="reschedule", past_tense="rescheduled")


@jobs.command()
@click.option("--force", is_flag=True, help="Also release jobs of workers that may be alive.")
@yes_option
@change_options
def unlock(force: bool, **options: Any) -> None:
    """Release jobs locked by dead workers, or for over four hours."""
    from graphile_worker.ops.bulk import UnlockAction

    warning = "A job that a worker still runs may run twice." if force else ""
    _run_change(
        UnlockAction(force=force),
        options,
        verb="unlock",
        past_tense="unlocked",
        requires_confirmation=True,
        warning=warning,
    )


@jobs.command()
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@click.option("--running", is_flag=True, help="Also remove running jobs once they finish.")
@yes_option
@dry_run_option
@json_option
@change_flags
def remove(keys: tuple[str, ...], running: bool, **options: Any) -> None:
    """Delete the jobs with these keys."""
    from graphile_worker._cli.bulk_commands import remove_by_key

    if not remove_by_key(current_queue_settings(), keys, include_running=running, **options):
        click.get_current_context().exit(1)


def _run_change(
    action: "BulkAction", options: dict[str, Any], *, verb: str, past_tense: str, **more: Any
) -> None:
    """Change jobs. Exit with 1 if a job that was named by its id was not changed."""
    from graphile_worker._cli.bulk_commands import ChangeOptions, change_jobs
    from graphile_worker._cli.job_output import build_filter
    from graphile_worker.ops.filters import filter_by_ids

    ids, where, is_all = options.pop("ids"), options.pop("where"), options.pop("is_all")
    job_filter = build_filter(where)
    # An empty filter may come from an unset shell variable, so it does not mean all jobs.
    if not ids and not job_filter.terms and not is_all:
        raise click.UsageError("no jobs chosen. Pass ids, --where or --all.")
    if ids:
        job_filter = filter_by_ids(ids) & job_filter
    change = ChangeOptions(verb=verb, past_tense=past_tense, ids=ids, **more, **options)
    result = change_jobs(current_queue_settings(), action, job_filter, change)
    if result is not None and change.limit is None and result.changed < len(set(ids)):
        click.get_current_context().exit(1)
