"""The command `graphile-worker`. Without a subcommand it runs a worker."""

import os
import sys

import click
import psycopg

from graphile_worker._cli.commands.add import add
from graphile_worker._cli.commands.audit import audit
from graphile_worker._cli.commands.bench import bench
from graphile_worker._cli.commands.config import config
from graphile_worker._cli.commands.cron import cron
from graphile_worker._cli.commands.dashboard import dashboard
from graphile_worker._cli.commands.demo import demo
from graphile_worker._cli.commands.doctor import doctor
from graphile_worker._cli.commands.exporter import exporter
from graphile_worker._cli.commands.history import history
from graphile_worker._cli.commands.init import init
from graphile_worker._cli.commands.jobs import jobs
from graphile_worker._cli.commands.migrate import migrate
from graphile_worker._cli.commands.pause import pause, resume
from graphile_worker._cli.commands.run import RunMode, parse_cleanup_steps, print_error, run_command
from graphile_worker._cli.commands.top import top
from graphile_worker._cli.commands.tune import tune
from graphile_worker._cli.commands.workers import workers
from graphile_worker._cli.settings.flags import GroupedHelp, current_settings, setting_flags
from graphile_worker._cli.settings.layers import find_unknown_variables
from graphile_worker._cli.streams import flush_standard_streams, open_standard_streams
from graphile_worker._cli.supervisor.pid1 import fork_if_pid1
from graphile_worker._settings.definitions import SETTINGS
from graphile_worker._support.error_format import make_printable
from graphile_worker.errors import GraphileWorkerError

SUBCOMMANDS = (
    *(init, demo, migrate, add, jobs, history, workers, pause, resume, audit, bench, cron),
    *(tune, doctor, top, dashboard, exporter, config),
)


class MainCommand(GroupedHelp, click.Group):
    pass


@click.group(
    cls=MainCommand,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="graphile-worker")
@click.option("--schema-only", is_flag=True, help="Install or upgrade the schema, then exit.")
@click.option("--once", is_flag=True, help="Run the jobs that are due, then exit.")
@click.option(
    "--cleanup",
    multiple=True,
    metavar="STEPS",
    help="Run the cleanup steps, then exit; repeatable.",
)
# A supervisor passes the file descriptors of the pipes to its processes.
@click.option("--parent", type=int, hidden=True)
@click.option("--parent-metrics", type=int, hidden=True)
@setting_flags(*SETTINGS)
@click.pass_context
def command(
    context: click.Context,
    /,
    schema_only: bool,
    once: bool,
    cleanup: tuple[str, ...],
    parent: int | None,
    parent_metrics: int | None,
) -> None:
    """Run a worker, or one of the commands below.

    Cleanup steps: DELETE_PERMAFAILED_JOBS, GC_TASK_IDENTIFIERS, GC_JOB_QUEUES.
    """
    if parent is None:
        for line in find_unknown_variables(os.environ):
            click.echo(make_printable(f"graphile-worker: {line}"), err=True)
    if context.invoked_subcommand is not None:
        return
    mode = RunMode(
        once=once,
        schema_only=schema_only,
        cleanup=parse_cleanup_steps(cleanup),
        parent=parent,
        parent_metrics=parent_metrics,
    )
    context.exit(run_command(mode, current_settings()))


for each in SUBCOMMANDS:
    command.add_command(each)


def main() -> None:
    """Run the command, and print an expected error as one line without a traceback."""
    open_standard_streams()
    fork_if_pid1()
    try:
        command(prog_name="graphile-worker")
    except (GraphileWorkerError, psycopg.Error, TimeoutError) as error:
        print_error(error)
        sys.exit(getattr(error, "exit_code", 1))
    finally:
        flush_standard_streams()
