"""`graphile-worker top`: a queue on one screen, live, once, or as JSON.

What does it is imported when it is asked for: every worker that starts would pay for it.
"""

from datetime import timedelta

import click

from graphile_worker._cli.settings.flags import current_settings, setting_flags
from graphile_worker._support.durations import parse_duration


class IntervalParam(click.ParamType):  # type: ignore[type-arg]  # generic in newer ones only
    """`2s` and the like."""

    name = "duration"
    minimum = timedelta(milliseconds=500)

    def convert(
        self, value: object, parameter: click.Parameter | None, context: click.Context | None
    ) -> timedelta:
        span = value if isinstance(value, timedelta) else parse_duration(str(value))
        if span is None or span < self.minimum:
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
    type=IntervalParam(),
    metavar="DURATION",
    default="2s",
    show_default=True,
    help="Look so often at most.",
)
@setting_flags("connection", "schema", "ext_schema", "prepared_statements")
def top(once: bool, as_json: bool, interval: timedelta) -> None:
    """Show rates, backlog, running jobs, workers and what calls for attention; change nothing."""
    from graphile_worker._cli.top.start import run_top

    run_top(current_settings(), interval=interval, once=once, as_json=as_json)
