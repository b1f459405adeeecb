"""`graphile-worker jobs`: look at jobs, ask why one does not run, and change them.

What does it is imported when it is asked for: every worker that starts would pay for it.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from graphile_worker._cli.arguments import DURATION, FACTOR, POSITIVE_INT, WHEN
from graphile_worker._cli.settings.flags import current_settings, reject_flag, setting_flags
from graphile_worker._support.renamed import RENAMED_FLAGS

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from graphile_worker.ops.bulk import BulkAction

Command = Callable[..., Any]

# A term that is turned around, as in ops/filters.py.
NEGATED_TERM_PATTERN = re.compile(
    r"-(task|queue|state|id|key|worker|error|attempts|priority|age|run|created|flag|payload)[:.]"
)

queue_flags = setting_flags("connection", "schema", "ext_schema")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would be done, no more.")
yes_option = click.option("--yes", "is_confirmed", is_flag=True, help="Do it without asking.")


@click.group()
@queue_flags
def jobs() -> None:
    """Look at jobs, ask why one does not run, and change them."""


# Looking


class FilterCommand(click.Command):
    """Terms that begin with a minus are no options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(
            ctx, [f" {arg}" if NEGATED_TERM_PATTERN.match(arg) else arg for arg in args]
        )


@jobs.command(name="list", cls=FilterCommand)
@click.argument("words", nargs=-1, metavar="[FILTER]...")
@click.option("--where", multiple=True, metavar="FILTER", help="Which jobs; all must hold.")
@click.option("--limit", type=POSITIVE_INT, default=50, show_default=True, help="At most so many.")
@click.option("--before", type=int, metavar="ID", help="Older than that one: the next page.")
@click.option("--newest", type=POSITIVE_INT, help="Look only among the newest so many.")
@click.option("--timeout", type=DURATION, default="10s", show_default=True, help="Give up after.")
@json_option
@queue_flags
def list_jobs(
    words: tuple[str, ...],
    where: tuple[str, ...],
    limit: int,
    before: int | None,
    newest: int | None,
    timeout: "timedelta",
    as_json: bool,
) -> None:
    """List jobs, the newest first: task:render_pdf state:failed error:timeout age:>10m ..."""
    from graphile_worker._cli.job_output import build_filter, print_job_list
    from graphile_worker.ops.search import QueryLimits

    print_job_list(
        current_settings(),
        build_filter((*words, *where)),
        limit=limit,
        before=before,
        newest=newest,
        limits=QueryLimits(statement_timeout=timeout),
        as_json=as_json,
    )


@jobs.command()
@click.argument("job_id", type=int, metavar="ID")
@json_option
@queue_flags
def show(job_id: int, as_json: bool) -> None:
    """Show all that is known of a job."""
    from graphile_worker._cli.job_output import print_job

    print_job(current_settings(), job_id, as_json=as_json)


@jobs.command()
@click.argument("job_id", type=int, metavar="ID")
@json_option
@queue_flags
def why(job_id: int, as_json: bool) -> None:
    """Say why a job does not run."""
    from graphile_worker._cli.job_output import print_reasons

    print_reasons(current_settings(), job_id, as_json=as_json)


# Changing


def change_options(function: Command) -> Command:
    """A command that changes jobs, with what all of them take."""
    options: list[Callable[[Command], Command]] = [
        click.argument("ids", nargs=-1, type=int, metavar="[ID]..."),
        click.option("--where", multiple=True, metavar="FILTER", help="Which jobs; all must hold."),
        click.option("--all", "is_all", is_flag=True, help="Every job that there is."),
        click.option("--limit", type=POSITIVE_INT, help="At most so many, the oldest first."),
        click.option(
            "--throttle",
            type=FACTOR,
            metavar="FACTOR",
            help="Pause so many times as long as each batch took (default: 4).",
        ),
        reject_flag("--rest", RENAMED_FLAGS["--rest"]),
        dry_run_option,
        json_option,
        queue_flags,
    ]
    for option in reversed(options):
        function = option(function)
    return function


@jobs.command()
@change_options
def retry(**options: Any) -> None:
    """Let jobs run now that failed, back off or are scheduled; failed ones from the beginning."""
    from graphile_worker.ops.bulk import RetryAction

    _run_change(RetryAction(), options, verb="retry", past_tense="retried")


@jobs.command()
@click.option("--reason", help="What becomes its last error.")
@yes_option
@change_options
def fail(reason: str | None, **options: Any) -> None:
    """Spend all attempts of jobs, for good."""
    from graphile_worker.ops.bulk import FailAction

    _run_change(
        FailAction(reason), options, verb="fail", past_tense="failed", requires_confirmation=True
    )


@jobs.command()
@yes_option
@change_options
def complete(**options: Any) -> None:
    """Delete jobs, as if they were done."""
    from graphile_worker.ops.bulk import CompleteAction

    _run_change(
        CompleteAction(), options, verb="delete", past_tense="deleted", requires_confirmation=True
    )


@jobs.command()
@click.option("--run-at", type=WHEN, help="When: 10m from now, or 2026-08-01T10:00Z.")
@click.option("--priority", type=int, help="Lower goes first.")
@click.option("--attempts", type=int, help="How many were made.")
@click.option("--max-attempts", type=int, help="How many there may be.")
@change_options
def reschedule(
    run_at: "datetime | timedelta | None",
    priority: int | None,
    attempts: int | None,
    max_attempts: int | None,
    **options: Any,
) -> None:
    """Give jobs another time, priority or number of attempts."""
    from graphile_worker.ops.bulk import RescheduleAction

    if (run_at, priority, attempts, max_attempts) == (None,) * 4:
        raise click.UsageError("say what to change: --run-at, --priority or the attempts")
    action = RescheduleAction(
        run_at=run_at, priority=priority, attempts=attempts, max_attempts=max_attempts
    )
    _run_change(action, options, verb="reschedule", past_tense="rescheduled")


@jobs.command()
@click.option("--force", is_flag=True, help="Also those of workers that may live.")
@yes_option
@change_options
def unlock(force: bool, **options: Any) -> None:
    """Take jobs from workers that are dead, or held them for four hours."""
    from graphile_worker.ops.bulk import UnlockAction

    warning = "What a living worker still runs may run twice." if force else ""
    action = UnlockAction(force=force)
    _run_change(
        action,
        options,
        verb="unlock",
        past_tense="unlocked",
        requires_confirmation=True,
        warning=warning,
    )


@jobs.command()
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@click.option("--running", is_flag=True, help="Let one that runs finish, and never run again.")
@yes_option
@dry_run_option
@json_option
@queue_flags
def remove(keys: tuple[str, ...], running: bool, **options: Any) -> None:
    """Delete the jobs with these keys."""
    from graphile_worker._cli.bulk_commands import remove_by_key

    if not remove_by_key(current_settings(), keys, include_running=running, **options):
        click.get_current_context().exit(1)


def _run_change(
    action: "BulkAction", options: dict[str, Any], *, verb: str, past_tense: str, **more: Any
) -> None:
    """Change the jobs that are meant; exit 1 if some that were named by their id were not."""
    from graphile_worker._cli.bulk_commands import ChangeOptions, change_jobs
    from graphile_worker._cli.job_output import build_filter
    from graphile_worker.ops.filters import filter_by_ids

    ids, where, is_all = options.pop("ids"), options.pop("where"), options.pop("is_all")
    wanted = build_filter(where)
    # A filter may come from a variable that is not set, and then is no word for all of them.
    if not ids and not wanted.terms and not is_all:
        raise click.UsageError("say which jobs: their ids, --where or --all")
    if ids:
        wanted = filter_by_ids(ids) & wanted
    way = ChangeOptions(verb=verb, past_tense=past_tense, ids=ids, **more, **options)
    outcome = change_jobs(current_settings(), action, wanted, way)
    if outcome is not None and way.limit is None and outcome.changed < len(set(ids)):
        click.get_current_context().exit(1)
