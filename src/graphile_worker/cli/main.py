"""The command `graphile-worker`: a worker by itself, everything else by a subcommand."""

import os
import sys

import click
import psycopg

from graphile_worker.cli.catalogue import SETTINGS
from graphile_worker.cli.commands.add import add
from graphile_worker.cli.commands.bench import bench
from graphile_worker.cli.commands.config import config
from graphile_worker.cli.commands.cron import cron
from graphile_worker.cli.commands.doctor import doctor
from graphile_worker.cli.commands.jobs import jobs
from graphile_worker.cli.commands.migrate import migrate
from graphile_worker.cli.commands.run import Asked, cleanup_tasks, say, work
from graphile_worker.cli.commands.top import top
from graphile_worker.cli.commands.tune import tune
from graphile_worker.cli.commands.workers import workers
from graphile_worker.cli.flags import current_settings, with_flags_of
from graphile_worker.cli.process_one import leave_process_one
from graphile_worker.cli.settings import unknown_variables
from graphile_worker.cli.streams import flush_all, open_all
from graphile_worker.error_text import printable
from graphile_worker.errors import GraphileWorkerError
from graphile_worker.sql.cleaning import CleanupTask

STEPS = ", ".join(each.value for each in CleanupTask)


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="graphile-worker")
@click.option("--schema-only", is_flag=True, help="Install or upgrade the schema, then exit.")
@click.option("--once", is_flag=True, help="Run what is ready, then exit.")
@click.option(
    "--cleanup",
    multiple=True,
    metavar="STEPS",
    help=f"Clean up what nobody needs, then exit: {STEPS}.",
)
# What a parent tells the processes that it starts: the number of their line to it.
@click.option("--parent", type=int, hidden=True)
@with_flags_of(*SETTINGS)
@click.pass_context
def command(
    context: click.Context,
    /,
    schema_only: bool,
    once: bool,
    cleanup: tuple[str, ...],
    parent: int | None,
) -> None:
    """A job queue whose engine is PostgreSQL. Without a command, run a worker."""
    if parent is None:
        for line in unknown_variables(os.environ):
            click.echo(printable(f"graphile-worker: {line}"), err=True)
    if context.invoked_subcommand is not None:
        return
    asked = Asked(once=once, schema_only=schema_only, cleanup=cleanup_tasks(cleanup), parent=parent)
    context.exit(work(asked, current_settings()))


command.add_command(migrate)
command.add_command(add)
command.add_command(jobs)
command.add_command(workers)
command.add_command(bench)
command.add_command(cron)
command.add_command(tune)
command.add_command(doctor)
command.add_command(top)
command.add_command(config)


def main() -> None:
    """Run the command; what a person can act on is one line, not a traceback."""
    open_all()
    leave_process_one()
    try:
        command(prog_name="graphile-worker")
    except (GraphileWorkerError, psycopg.Error, TimeoutError) as error:
        say(error)
        sys.exit(getattr(error, "exit_code", 1))
    finally:
        flush_all()
