"""The command `graphile-worker`. Without a subcommand it runs a worker.

`--help` and `--version` import only the definitions of the settings. A subcommand and the worker
are imported when they run.
"""

import gc
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module

import click

from graphile_worker._cli.error_output import is_expected, print_error
from graphile_worker._cli.settings.flags import GroupedHelp, current_settings, setting_flags
from graphile_worker._cli.settings.layers import find_unknown_variables
from graphile_worker._cli.streams import flush_standard_streams, open_standard_streams
from graphile_worker._cli.supervisor.pid1 import fork_if_pid1
from graphile_worker._settings.definitions import SETTINGS
from graphile_worker._support.error_format import make_printable

# The first sentence of each subcommand, for `--help`.
SUBCOMMANDS = {
    "init": "Write a first worker with tests and a database.",
    "demo": "Run a demo queue in a temporary schema, and watch it.",
    "migrate": "Install or upgrade the schema.",
    "add": "Add a job.",
    "jobs": "List jobs, show what became of one, and change them.",
    "history": "Show and set how long outcomes of jobs are kept.",
    "workers": "List workers, and recover the jobs of dead ones.",
    "shards": "Show the jobs of all shards.",
    "pause": "Pause tasks and named queues, and list what is paused.",
    "resume": "Resume paused tasks and named queues.",
    "limits": "List the limits of tasks, and change them.",
    "audit": "List who changed which jobs, newest first.",
    "bench": "Measure throughput and latency on this database.",
    "cron": "Check, list and run scheduled tasks.",
    "types": "Describe the payloads of tasks for other languages.",
    "tune": "Print recommended PostgreSQL settings as SQL.",
    "doctor": "Diagnose the queue and its database.",
    "top": "Watch the queue live.",
    "dashboard": "Show the queue in the browser.",
    "exporter": "Serve metrics of the queue for Prometheus and KEDA.",
    "config": "Print every setting and its source.",
}
# The module of a subcommand, if it does not have the same name.
MODULES = {"resume": "pause"}


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Import without searches for garbage. Imported modules stay, so no later search reads them."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class LazyCommands(Mapping[str, click.Command]):
    """The subcommands by name. Reading one imports it."""

    def __getitem__(self, name: str) -> click.Command:
        if name not in SUBCOMMANDS:
            raise KeyError(name)
        with pause_garbage_collection():
            module = import_module(f"graphile_worker._cli.commands.{MODULES.get(name, name)}")
        command: click.Command = getattr(module, name)
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(SUBCOMMANDS)

    def __len__(self) -> int:
        return len(SUBCOMMANDS)


class MainCommand(GroupedHelp, click.Group):
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        listed = [click.Command(name, help=text) for name, text in SUBCOMMANDS.items()]
        click.Group(commands=listed).format_commands(ctx, formatter)


@click.group(
    cls=MainCommand,
    commands=LazyCommands(),
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
    with pause_garbage_collection():
        from graphile_worker._cli.commands.run import RunMode, parse_cleanup_steps, run_command

    mode = RunMode(
        once=once,
        schema_only=schema_only,
        cleanup=parse_cleanup_steps(cleanup),
        parent=parent,
        parent_metrics=parent_metrics,
    )
    context.exit(run_command(mode, current_settings()))


def main() -> None:
    """Run the command, and print an expected error as one line without a traceback."""
    open_standard_streams()
    fork_if_pid1()
    try:
        command(prog_name="graphile-worker")
    except Exception as error:
        if not is_expected(error):
            raise
        print_error(error)
        sys.exit(getattr(error, "exit_code", 1))
    finally:
        flush_standard_streams()
        # Python searches everything for garbage before it exits, which takes longer than an import.
        gc.freeze()
