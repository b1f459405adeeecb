"""The command `graphile-worker`: options that every subcommand takes, errors as one line."""

import sys

import click
import psycopg

from graphile_worker.cli.commands.migrate import migrate
from graphile_worker.cli.settings import database_options
from graphile_worker.errors import GraphileWorkerError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="graphile-worker")
@database_options
def command() -> None:
    """A job queue whose engine is PostgreSQL."""


command.add_command(migrate)


def main() -> None:
    """Run the command; what a person can act on is one line, not a traceback."""
    try:
        command(prog_name="graphile-worker")
    except (GraphileWorkerError, psycopg.Error) as error:
        # libpq explains itself over several lines.
        click.echo(f"graphile-worker: {' '.join(str(error).split())}", err=True)
        sys.exit(getattr(error, "exit_code", 1))
