"""`graphile-worker top`: a queue on one screen, live, once, or as JSON.

What does it is imported when it is asked for: every worker that starts would pay for it.
"""

from datetime import timedelta

import click

from graphile_worker.cli.flags import current_settings, with_flags_of
from graphile_worker.durations import read_duration


class Interval(click.ParamType):  # type: ignore[type-arg]  # generic in newer ones only
    """`2s` and the like."""

    name = "duration"
    shortest = timedelta(milliseconds=500)

    def convert(
        self, value: object, parameter: click.Parameter | None, context: click.Context | None
    ) -> timedelta:
        span = value if isinstance(value, timedelta) else read_duration(str(value))
        if span is None or span < self.shortest:
            self.fail(f"expected a time of 500ms or more, such as 2s, got {value}.", parameter)
        return span


@click.command()
@click.option("--once", is_flag=True, help="Print it once, then exit.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print a line of JSON for each look, or with --once one.",
)
@click.option(
    "--interval",
    type=Interval(),
    metavar="DURATION",
    default="2s",
    show_default=True,
    help="Look so often at most.",
)
@with_flags_of("connection", "schema", "ext_schema", "prepared_statements")
def top(once: bool, as_json: bool, interval: timedelta) -> None:
    """Show rates, backlog, running jobs, workers and what calls for attention; change nothing."""
    from graphile_worker.cli.top.start import show

    show(current_settings(), interval=interval, once=once, as_json=as_json)
