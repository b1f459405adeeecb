"""`graphile-worker history`: how long outcomes are kept, and what is stored.

Each command imports what it needs when it runs, so that workers start without it.
"""

from typing import TYPE_CHECKING

import click

from graphile_worker._cli.arguments import POSITIVE_DURATION, POSITIVE_INT, json_option
from graphile_worker._cli.commands.jobs import change_flags, queue_flags
from graphile_worker._cli.settings.flags import current_queue_settings

if TYPE_CHECKING:
    from datetime import timedelta


@click.group()
@queue_flags
def history() -> None:
    """Show and set how long outcomes of jobs are kept."""


@history.command()
@json_option
@queue_flags
def show(as_json: bool) -> None:
    """Show how long outcomes are kept, and what is stored."""
    from graphile_worker._cli.history_output import print_history

    print_history(current_queue_settings(), as_json=as_json)


@history.command(name="set")
@click.option(
    "--keep",
    type=POSITIVE_DURATION,
    metavar="DURATION",
    help="How long to keep outcomes, 14d (default: unchanged).",
)
@click.option("--max-rows", type=POSITIVE_INT, help="About how many to keep (default: unchanged).")
@click.option("--no-max-rows", is_flag=True, help="Keep any number of outcomes.")
@json_option
@change_flags
def set_history(
    keep: "timedelta | None", max_rows: int | None, no_max_rows: bool, as_json: bool
) -> None:
    """Set how long and how many outcomes are kept."""
    from graphile_worker._cli.history_output import change_history

    if keep is None and max_rows is None and not no_max_rows:
        raise click.UsageError("nothing to change. Pass --keep, --max-rows or --no-max-rows.")
    if max_rows is not None and no_max_rows:
        raise click.UsageError("pass --max-rows or --no-max-rows, not both.")
    change_history(
        current_queue_settings(),
        keep=keep,
        max_rows=max_rows,
        clear_max_rows=no_max_rows,
        as_json=as_json,
    )


@history.command()
@json_option
@change_flags
def prune(as_json: bool) -> None:
    """Delete outcomes that are kept for too long, now."""
    from graphile_worker._cli.history_output import prune_history

    prune_history(current_queue_settings(), as_json=as_json)
