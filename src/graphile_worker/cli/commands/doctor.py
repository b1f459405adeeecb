"""`graphile-worker doctor`: what is wrong with a queue and its surroundings, and what to type."""

from datetime import timedelta

import click

from graphile_worker.cli.arguments import SOME_TIME
from graphile_worker.cli.flags import current_settings, with_flags_of


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--strict", is_flag=True, help="Warnings end with 1, too.")
@click.option(
    "--timeout",
    type=SOME_TIME,
    metavar="DURATION",
    help="Give up a question to the database after so long (default: 10s).",
)
@click.option(
    "--held-for",
    type=SOME_TIME,
    metavar="DURATION",
    help="Name transactions that are open for longer (default: 5m).",
)
@with_flags_of("connection", "schema", "ext_schema", "listen", "prepared_statements")
def doctor(
    as_json: bool, strict: bool, timeout: timedelta | None, held_for: timedelta | None
) -> None:
    """Say what is wrong with the queue and its surroundings, and what to type; change nothing."""
    # Not for every worker that starts.
    from graphile_worker.cli.diagnosis import diagnosed, shown, shown_as_json

    report = diagnosed(current_settings(), timeout=timeout, held_for=held_for)
    click.echo(shown_as_json(report) if as_json else shown(report))
    if report.is_critical or (strict and report.findings):
        click.get_current_context().exit(1)
