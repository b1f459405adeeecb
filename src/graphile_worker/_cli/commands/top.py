"""`graphile-worker top`: a queue on one screen, live, once, or as JSON."""

from datetime import timedelta

import click

from graphile_worker._cli.arguments import DURATION
from graphile_worker._cli.settings.flags import current_queue_settings, setting_flags

MIN_INTERVAL = timedelta(milliseconds=500)


def _check_interval(
    context: click.Context, parameter: click.Parameter, interval: timedelta
) -> timedelta:
    if interval < MIN_INTERVAL:
        raise click.BadParameter("expected a duration of 500ms or more, for example 2s.")
    return interval


@click.command()
@click.option("--once", is_flag=True, help="Print one snapshot, then exit.")
@click.option("--json", "as_json", is_flag=True, help="Print each snapshot as one line of JSON.")
@click.option(
    "--interval",
    type=DURATION,
    callback=_check_interval,
    metavar="DURATION",
    default="2s",
    help="Shortest time between two snapshots (default: 2s).",
)
@setting_flags("connection", "schema", "ext_schema", "prepared_statements")
def top(once: bool, as_json: bool, interval: timedelta) -> None:
    """Watch the queue live.

    Shows rates, backlog, running jobs, workers and alerts, and changes nothing.
    """
    # Imported here, so that workers start without it.
    from graphile_worker._cli.top.start import run_top

    run_top(current_queue_settings(), interval=interval, once=once, as_json=as_json)
