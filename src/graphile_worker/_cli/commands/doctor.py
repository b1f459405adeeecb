"""`graphile-worker doctor`: what is wrong with a queue and its surroundings, and what to type."""

from datetime import timedelta

import click

from graphile_worker._cli.arguments import POSITIVE_DURATION
from graphile_worker._cli.settings.flags import current_settings, reject_flag, setting_flags
from graphile_worker._support.renamed import RENAMED_FLAGS


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--strict", is_flag=True, help="Warnings end with 1, too.")
@click.option(
    "--timeout",
    type=POSITIVE_DURATION,
    metavar="DURATION",
    help="Give up a question to the database after so long (default: 10s).",
)
@click.option(
    "--max-transaction-age",
    type=POSITIVE_DURATION,
    metavar="DURATION",
    help="Name transactions that are open for longer (default: 5m).",
)
@reject_flag("--held-for", RENAMED_FLAGS["--held-for"])
@setting_flags("connection", "schema", "ext_schema", "listen", "prepared_statements")
def doctor(
    as_json: bool, strict: bool, timeout: timedelta | None, max_transaction_age: timedelta | None
) -> None:
    """Say what is wrong with the queue and its surroundings, and what to type; change nothing."""
    # Not for every worker that starts.
    from graphile_worker._cli.doctor_output import format_report, format_report_json, run_doctor

    report = run_doctor(
        current_settings(), timeout=timeout, max_transaction_age=max_transaction_age
    )
    click.echo(format_report_json(report) if as_json else format_report(report))
    if report.is_critical or (strict and report.findings):
        click.get_current_context().exit(1)
