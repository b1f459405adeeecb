"""`graphile-worker doctor`: find problems of a queue and its database, and how to fix them."""

from datetime import timedelta

import click

from graphile_worker._cli.arguments import POSITIVE_DURATION, json_option
from graphile_worker._cli.settings.flags import current_queue_settings, reject_flag, setting_flags
from graphile_worker._support.renamed import RENAMED_FLAGS


@click.command()
@json_option
@click.option("--strict", is_flag=True, help="Exit with 1 also for notes.")
@click.option(
    "--timeout",
    type=POSITIVE_DURATION,
    metavar="DURATION",
    help="Time limit of each query (default: 10s).",
)
@click.option(
    "--max-transaction-age",
    type=POSITIVE_DURATION,
    metavar="DURATION",
    help="Report transactions older than this (default: 5m).",
)
@reject_flag("--held-for", RENAMED_FLAGS["--held-for"])
@setting_flags("connection", "schema", "ext_schema", "listen", "prepared_statements")
def doctor(
    as_json: bool, strict: bool, timeout: timedelta | None, max_transaction_age: timedelta | None
) -> None:
    """Diagnose the queue and its database.

    Prints each problem with the commands that fix it, and changes nothing.

    Exit codes: 0 no problem, 1 warnings, 2 usage error, 3 critical or unreachable.
    """
    # Imported here, as workers do not need it.
    from graphile_worker._cli import doctor_output

    report = doctor_output.run_doctor(
        current_queue_settings(), timeout=timeout, max_transaction_age=max_transaction_age
    )
    format_report = doctor_output.format_report_json if as_json else doctor_output.format_report
    click.echo(format_report(report))
    click.get_current_context().exit(doctor_output.get_exit_code(report, strict=strict))
