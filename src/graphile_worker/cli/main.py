"""The command `graphile-worker`: a worker by itself, everything else by a subcommand."""

import sys
from typing import Any

import click
import psycopg

from graphile_worker.cli.commands.bench import bench
from graphile_worker.cli.commands.cron import cron
from graphile_worker.cli.commands.migrate import migrate
from graphile_worker.cli.commands.run import cleanup_tasks, say, work
from graphile_worker.cli.commands.tune import tune
from graphile_worker.cli.settings import (
    WorkerSettings,
    current_settings,
    database_options,
    worker_options,
)
from graphile_worker.cli.streams import flush_all, open_all
from graphile_worker.errors import GraphileWorkerError


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="graphile-worker")
@database_options
@worker_options
@click.pass_context
def command(context: click.Context, /, cleanup: tuple[str, ...], **flags: Any) -> None:
    """A job queue whose engine is PostgreSQL. Without a command, run a worker."""
    if context.invoked_subcommand is not None:
        return
    database = current_settings()
    settings = WorkerSettings(
        connection=database.connection,
        schema=database.given_schema,
        cleanup=cleanup_tasks(cleanup),
        **flags,
    )
    context.exit(work(settings))


command.add_command(migrate)
command.add_command(bench)
command.add_command(cron)
command.add_command(tune)


def main() -> None:
    """Run the command; what a person can act on is one line, not a traceback."""
    open_all()
    try:
        command(prog_name="graphile-worker")
    except (GraphileWorkerError, psycopg.Error) as error:
        say(error)
        sys.exit(getattr(error, "exit_code", 1))
    finally:
        flush_all()
