"""`graphile-worker` without a subcommand: run a worker until a signal, or once."""

import asyncio
import itertools
import logging
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import click
import psycopg

from graphile_worker.cli.catalogue import CommandOptions
from graphile_worker.cli.config_file import warn_of_group
from graphile_worker.cli.health import health_server
from graphile_worker.cli.line import DUE, LineToParent, longest_stop
from graphile_worker.cli.log_format import MARKER, configure
from graphile_worker.cli.loops import LoopFactory, loop_factory
from graphile_worker.cli.processes import Plan, Processes
from graphile_worker.cli.settings import Settings, Source
from graphile_worker.cli.sources import (
    app_of,
    client_of,
    crontab_file,
    schema_of,
    tasks_of,
)
from graphile_worker.cli.streams import flush_all
from graphile_worker.cli.watching import Watcher
from graphile_worker.error_text import HINT, hints_of, import_traceback, one_line, printable
from graphile_worker.errors import (
    ConfigurationError,
    CrontabError,
    GraphileWorkerError,
    PoolStopped,
)
from graphile_worker.events import JobStarted
from graphile_worker.loading import load_crontab
from graphile_worker.runner import Runner, found_tasks
from graphile_worker.sql.cleaning import CleanupTask
from graphile_worker.worker.signals import heard_by

logger = logging.getLogger("graphile_worker")

# How psycopg begins when it could not connect; libpq's own words may be in any language.
NO_CONNECTION = re.compile(r"connection (failed|is bad|timeout)|failed to resolve|\[Errno")


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What to do this time; a process of --processes has the number of its line to the parent."""

    once: bool = False
    schema_only: bool = False
    cleanup: tuple[CleanupTask, ...] = ()
    parent: int | None = None

    def __post_init__(self) -> None:
        if self.once and self.schema_only:
            raise ConfigurationError("--once and --schema-only exclude each other")

    @property
    def ends(self) -> str | None:
        """The flag by which it ends by itself."""
        flags = {"--once": self.once, "--schema-only": self.schema_only, "--cleanup": self.cleanup}
        return next((flag for flag, is_given in flags.items() if is_given), None)

    def check_against(self, settings: Settings) -> None:
        """A file may say that workers watch, but nobody can ask for both at once."""
        watch = settings.given.get("watch")
        if self.ends and watch is not None and watch.value and watch.source is Source.FLAG:
            raise ConfigurationError(f"{self.ends} and --watch exclude each other")


def work(asked: Asked, settings: Settings) -> int:
    """Do what was asked for, as the settings say; the exit code."""
    command = settings.command
    check_command(command)
    asked.check_against(settings)
    if asked.schema_only:
        return _migrate(settings)
    if asked.cleanup:
        return _clean_up(asked.cleanup, settings)
    configure(command.log_format)
    warn_of_group(settings.config, allow_unsafe=bool(settings.value("allow_unsafe_tasks")))
    if asked.parent is None and (command.processes is not None or _watches(asked, settings)):
        return _oversee(asked, settings)
    if command.watch:
        # By its second and its size, what was compiled a moment ago may look like what is new.
        sys.dont_write_bytecode = True
    make_loop = loop_factory(command.loop)
    line = None if asked.parent is None else _line(asked.parent, settings)
    return _until_done(_worked(_runner(asked, settings), asked, settings, line), make_loop)


def _line(number: int, settings: Settings) -> LineToParent:
    return LineToParent(number, longest_stop(settings.options.stop_after))


def check_command(command: CommandOptions) -> None:
    """Refuse what makes no sense together, or here."""
    if command.max_memory is not None and command.processes is None and not command.watch:
        raise ConfigurationError("--max-memory needs a parent that looks: add --processes 1")
    if sys.platform == "win32" and (command.processes is not None or command.watch):
        raise ConfigurationError("--processes and --watch: not on Windows")


def _watches(asked: Asked, settings: Settings) -> bool:
    return settings.command.watch and asked.ends is None


def _oversee(asked: Asked, settings: Settings) -> int:
    # What makes no sense is said once, not by each process.
    command, options = settings.command, settings.options
    loop_factory(command.loop)
    watches = _watches(asked, settings)
    # Whoever watches waits until a crontab is mended.
    if not asked.once and not watches and (crontab := crontab_file(settings)) is not None:
        load_crontab(crontab, allow_unsafe=options.allow_unsafe_tasks)
    plan = Plan(
        count=command.processes or 1,
        stop_within=longest_stop(options.stop_after),
        once=asked.once,
        max_memory=command.max_memory,
        health_port=command.health_port,
        health_host=command.health_host,
    )
    return _until_done(_overseen(plan, Watcher(settings) if watches else None))


async def _overseen(plan: Plan, watcher: Watcher | None) -> int:
    return await Processes(plan, watcher).run()


def _migrate(settings: Settings) -> int:
    settings = settings.with_app(app_of(settings))
    with client_of(settings) as client:
        level = client.migrate()
    click.echo(f"schema {schema_of(settings)} is up to date, at level {level}")
    return 0


def _clean_up(steps: Sequence[CleanupTask], settings: Settings) -> int:
    tasks = tasks_of(settings)
    settings = settings.with_app(tasks)
    known = {} if tasks is None else found_tasks(tasks, settings.options)
    with client_of(settings) as client:
        client.cleanup(steps, task_identifiers_to_keep=list(known))
    click.echo(f"cleaned up: {', '.join(each.value for each in steps)}")
    return 0


def _runner(asked: Asked, settings: Settings) -> Runner:
    tasks = tasks_of(settings)
    if tasks is None:
        raise ConfigurationError(
            "no tasks: make a folder ./tasks with a file for each task, or name your app with "
            "--app package.module:app (or GRAPHILE_WORKER_APP, or app in graphile-worker.toml)"
        )
    settings = settings.with_app(tasks)
    return Runner(
        settings.value("connection"),
        tasks,
        crontab_file=None if asked.once else crontab_file(settings),
        options=settings.options,
        # A child never counts signals: its parent says whether one is the second.
        handle_signals=asked.parent is None,
    )


async def _worked(
    runner: Runner, asked: Asked, settings: Settings, line: LineToParent | None
) -> int:
    try:
        async with _surrounded(runner, asked, settings.command, line):
            if asked.once:
                await runner.run_once()
            else:
                await runner.start()
                if settings.value("app") is None and crontab_file(settings) is None:
                    logger.info("there is no file ./crontab, so no tasks recur")
                await runner.wait()
    except (asyncio.CancelledError, PoolStopped):
        # A signal came before there was anything to stop.
        if runner.forced_by is None:
            raise
    return 0 if runner.forced_by is None else 128 + runner.forced_by


@asynccontextmanager
async def _surrounded(
    runner: Runner, asked: Asked, command: CommandOptions, line: LineToParent | None
) -> AsyncIterator[None]:
    """What is there beside a worker: a parent, or else signals of its own and its health."""
    if command.max_jobs is not None:
        # Once, what is left of the jobs is for those that still run.
        end = runner.let_finish if line is None or asked.once else partial(line.say, DUE)
        _count_jobs(runner, command.max_jobs, end)
    if line is None:
        health = health_server(
            command.health_port, lambda: runner.is_ready, host=command.health_host
        )
        async with health:
            yield
    else:
        with heard_by(runner.stop_by):
            async with line.heard_by(runner):
                yield


def _count_jobs(runner: Runner, most: int, end: Callable[[], object]) -> None:
    """Call the function when the last of so many jobs has started."""
    numbers = itertools.count(1)

    @runner.hooks.on(JobStarted)
    def count(event: JobStarted) -> None:
        if next(numbers) == most:
            end()


def _until_done(work: Coroutine[Any, Any, int], make_loop: LoopFactory | None = None) -> int:
    """Run to the end, and leave behind what does not want to end."""
    with asyncio.Runner(loop_factory=make_loop) as loop:
        try:
            code = loop.run(_coded(work))
        except KeyboardInterrupt:
            return 130
        if asyncio.all_tasks(loop.get_loop()):
            # A task that ignores being cancelled would keep the loop from closing.
            _leave(code)
    return code


async def _coded(work: Coroutine[Any, Any, int]) -> int:
    try:
        return await work
    except (GraphileWorkerError, psycopg.Error, OSError) as error:
        say(error)
        return getattr(error, "exit_code", 1)


def say(error: BaseException) -> None:
    """What a person can act on is one line; libpq explains itself over several.

    Before it, the traceback of the user's module that could not be imported.
    """
    if isinstance(error, CrontabError):
        # One for each thing that is wrong.
        for problem in error.problems:
            click.echo(printable(f"graphile-worker: {error.source}: {problem}"), err=True)
        return
    for line in import_traceback(error):
        click.echo(f"{MARKER}{printable(line)}", err=True)
    text, hints = one_line(str(error)) or type(error).__name__, hints_of(error)
    if hints and (said := getattr(getattr(error, "diag", None), "message_primary", None)):
        # Without the statements around it, as the hint must be seen.
        text = one_line(said)
    words = "; ".join([text, *map(one_line, hints)])
    click.echo(f"graphile-worker: {words}{_connection_hint(error)}", err=True)


def _connection_hint(error: BaseException) -> str:
    """What to check when there is no connection; in the middle of work, it would mislead."""
    if not isinstance(error, psycopg.OperationalError) or error.sqlstate is not None:
        return ""
    if not NO_CONNECTION.match(str(error)):
        return ""
    return (
        f"; {HINT}check host, port, user and database of the connection: "
        "`graphile-worker config` shows it and where it was given"
    )


def _leave(code: int) -> None:
    flush_all()
    os._exit(code)


def cleanup_tasks(names: tuple[str, ...]) -> tuple[CleanupTask, ...]:
    """The steps of `--cleanup A,B --cleanup C`."""
    wanted = [name.strip() for listing in names for name in listing.split(",") if name.strip()]
    known = {each.value: each for each in CleanupTask}
    for name in wanted:
        if name not in known:
            raise ConfigurationError(f"--cleanup {name}: expected any of {', '.join(known)}")
    return tuple(known[name] for name in wanted)
