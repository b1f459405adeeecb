"""`graphile-worker jobs`: look at jobs, ask why one does not run, and change them.

What does it is imported when it is asked for: every worker that starts would pay for it.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from graphile_worker.cli.arguments import AT_LEAST_1, FACTOR, SPAN, WHEN
from graphile_worker.cli.flags import current_settings, with_flags_of

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from graphile_worker.administration.bulk import Action

Command = Callable[..., Any]

# A term that is turned around, as in administration/filters.py.
NEGATED = re.compile(
    r"-(task|queue|state|id|key|worker|error|attempts|priority|age|run|created|flag|payload)[:.]"
)

on_queue = with_flags_of("connection", "schema", "ext_schema")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would be done, no more.")
yes_option = click.option("--yes", "is_sure", is_flag=True, help="Do it without asking.")


@click.group()
@on_queue
def jobs() -> None:
    """Look at jobs, ask why one does not run, and change them."""


# Looking


class Worded(click.Command):
    """Terms that begin with a minus are no options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [f" {arg}" if NEGATED.match(arg) else arg for arg in args])


@jobs.command(name="list", cls=Worded)
@click.argument("words", nargs=-1, metavar="[FILTER]...")
@click.option("--where", multiple=True, metavar="FILTER", help="Which jobs; all must hold.")
@click.option("--limit", type=AT_LEAST_1, default=50, show_default=True, help="At most so many.")
@click.option("--before", type=int, metavar="ID", help="Older than that one: the next page.")
@click.option("--newest", type=AT_LEAST_1, help="Look only among the newest so many.")
@click.option("--timeout", type=SPAN, default="10s", show_default=True, help="Give up after.")
@json_option
@on_queue
def list_them(
    words: tuple[str, ...],
    where: tuple[str, ...],
    limit: int,
    before: int | None,
    newest: int | None,
    timeout: "timedelta",
    as_json: bool,
) -> None:
    """List jobs, the newest first: task:render_pdf state:failed error:timeout age:>10m ..."""
    from graphile_worker.administration.finding import Patience
    from graphile_worker.cli.looking import filter_of, print_list

    print_list(
        current_settings(),
        filter_of((*words, *where)),
        limit=limit,
        before=before,
        newest=newest,
        patience=Patience(statement=timeout),
        as_json=as_json,
    )


@jobs.command()
@click.argument("job_id", type=int, metavar="ID")
@json_option
@on_queue
def show(job_id: int, as_json: bool) -> None:
    """Show all that is known of a job."""
    from graphile_worker.cli.looking import print_job

    print_job(current_settings(), job_id, as_json=as_json)


@jobs.command()
@click.argument("job_id", type=int, metavar="ID")
@json_option
@on_queue
def why(job_id: int, as_json: bool) -> None:
    """Say why a job does not run."""
    from graphile_worker.cli.looking import print_reasons

    print_reasons(current_settings(), job_id, as_json=as_json)


# Changing


def changes_jobs(function: Command) -> Command:
    """A command that changes jobs, with what all of them take."""
    options: list[Callable[[Command], Command]] = [
        click.argument("ids", nargs=-1, type=int, metavar="[ID]..."),
        click.option("--where", multiple=True, metavar="FILTER", help="Which jobs; all must hold."),
        click.option("--all", "is_all", is_flag=True, help="Every job that there is."),
        click.option("--limit", type=AT_LEAST_1, help="At most so many, the oldest first."),
        click.option(
            "--rest",
            type=FACTOR,
            metavar="FACTOR",
            help="Pause so many times as long as each batch took (default: 4).",
        ),
        dry_run_option,
        json_option,
        on_queue,
    ]
    for option in reversed(options):
        function = option(function)
    return function


@jobs.command()
@changes_jobs
def retry(**given: Any) -> None:
    """Let jobs run now that failed, back off or are scheduled; failed ones from the beginning."""
    from graphile_worker.administration.bulk import Retry

    _change(Retry(), given, verb="retry", done="retried")


@jobs.command()
@click.option("--reason", help="What becomes its last error.")
@yes_option
@changes_jobs
def fail(reason: str | None, **given: Any) -> None:
    """Spend all attempts of jobs, for good."""
    from graphile_worker.administration.bulk import Fail

    _change(Fail(reason), given, verb="fail", done="failed", must_be_sure=True)


@jobs.command()
@yes_option
@changes_jobs
def complete(**given: Any) -> None:
    """Delete jobs, as if they were done."""
    from graphile_worker.administration.bulk import Complete

    _change(Complete(), given, verb="delete", done="deleted", must_be_sure=True)


@jobs.command()
@click.option("--run-at", type=WHEN, help="When: 10m from now, or 2026-08-01T10:00Z.")
@click.option("--priority", type=int, help="Lower goes first.")
@click.option("--attempts", type=int, help="How many were made.")
@click.option("--max-attempts", type=int, help="How many there may be.")
@changes_jobs
def reschedule(
    run_at: "datetime | timedelta | None",
    priority: int | None,
    attempts: int | None,
    max_attempts: int | None,
    **given: Any,
) -> None:
    """Give jobs another time, priority or number of attempts."""
    from graphile_worker.administration.bulk import Reschedule

    if (run_at, priority, attempts, max_attempts) == (None,) * 4:
        raise click.UsageError("say what to change: --run-at, --priority or the attempts")
    action = Reschedule(
        run_at=run_at, priority=priority, attempts=attempts, max_attempts=max_attempts
    )
    _change(action, given, verb="reschedule", done="rescheduled")


@jobs.command()
@click.option("--force", is_flag=True, help="Also those of workers that may live.")
@yes_option
@changes_jobs
def unlock(force: bool, **given: Any) -> None:
    """Take jobs from workers that are dead, or held them for four hours."""
    from graphile_worker.administration.bulk import Unlock

    warning = "What a living worker still runs may run twice." if force else ""
    action = Unlock(by_force=force)
    _change(action, given, verb="unlock", done="unlocked", must_be_sure=True, warning=warning)


@jobs.command()
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@click.option("--running", is_flag=True, help="Let one that runs finish, and never run again.")
@yes_option
@dry_run_option
@json_option
@on_queue
def remove(keys: tuple[str, ...], running: bool, **given: Any) -> None:
    """Delete the jobs with these keys."""
    from graphile_worker.cli.changing import remove_by_key

    if not remove_by_key(current_settings(), keys, also_running=running, **given):
        click.get_current_context().exit(1)


def _change(action: "Action", given: dict[str, Any], *, verb: str, done: str, **more: Any) -> None:
    """Change the jobs that are meant; exit 1 if some that were named by their id were not."""
    from graphile_worker.administration.filters import with_ids
    from graphile_worker.cli.changing import Way, change
    from graphile_worker.cli.looking import filter_of

    ids, where, is_all = given.pop("ids"), given.pop("where"), given.pop("is_all")
    wanted = filter_of(where)
    # A filter may come from a variable that is not set, and then is no word for all of them.
    if not ids and not wanted.terms and not is_all:
        raise click.UsageError("say which jobs: their ids, --where or --all")
    if ids:
        wanted = with_ids(ids) & wanted
    way = Way(verb=verb, done=done, ids=ids, **more, **given)
    outcome = change(current_settings(), action, wanted, way)
    if outcome is not None and way.limit is None and outcome.done < len(set(ids)):
        click.get_current_context().exit(1)
