"""`graphile-worker limits`: list the limits of tasks, and change them while workers run."""

import click

from graphile_worker._cli.arguments import json_option
from graphile_worker._cli.commands.jobs import change_flags, queue_flags
from graphile_worker._cli.settings.flags import current_queue_settings


@click.group()
@queue_flags
def limits() -> None:
    """List the limits of tasks, and change them."""


@limits.command(name="list")
@json_option
@queue_flags
def list_limits(as_json: bool) -> None:
    """List limits: their values, who set them, and their use."""
    from graphile_worker._cli.limit_output import print_limits

    print_limits(current_queue_settings(), as_json=as_json)


@limits.command(name="set")
@click.argument("name")
@click.argument("value")
@click.option(
    "--burst",
    type=click.IntRange(min=1),
    help="Starts that may follow at once (default: as before).",
)
@json_option
@change_flags
def set_limit(name: str, value: str, burst: int | None, as_json: bool) -> None:
    """Set slots, or starts per period, until you reset them.

    Example: graphile-worker limits set stripe 50/1m --burst 5
    """
    from graphile_worker._cli.limit_output import set_limit

    set_limit(current_queue_settings(), name, value, burst=burst, as_json=as_json)


@limits.command(name="reset")
@click.argument("name")
@json_option
@change_flags
def reset_limit(name: str, as_json: bool) -> None:
    """Use the values of the app again."""
    from graphile_worker._cli.limit_output import reset_limit

    reset_limit(current_queue_settings(), name, as_json=as_json)
