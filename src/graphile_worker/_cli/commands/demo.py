"""`graphile-worker demo`: watch two workers and a producer in a temporary schema."""

import click

from graphile_worker._cli.arguments import POSITIVE_INT
from graphile_worker._cli.settings.flags import current_flags, current_queue_settings, setting_flags
from graphile_worker.errors import ConfigurationError


@click.command()
@click.option(
    "--seconds", type=POSITIVE_INT, help="Print a summary after this time instead (default: off)."
)
@setting_flags("connection")
def demo(seconds: int | None) -> None:
    """Run a demo queue in a temporary schema, and watch it.

    Starts two workers and a producer, opens top, and drops the schema at the end. Without a
    terminal, or with --seconds, it prints one snapshot and exits.
    """
    # Imported here, as workers do not need it.
    from graphile_worker._cli.demo.run import run_demo

    if "schema" in current_flags().values:
        raise ConfigurationError("demo creates its own temporary schema. Remove --schema.")
    run_demo(current_queue_settings(), seconds)
