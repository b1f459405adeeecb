"""`graphile-worker` without a subcommand: run a worker until a signal, or once."""

import asyncio
import itertools
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click
import psycopg

from graphile_worker.app import App
from graphile_worker.cli.health import health_server
from graphile_worker.cli.line import DUE, LineToParent
from graphile_worker.cli.log_format import configure
from graphile_worker.cli.loops import LoopFactory, loop_factory
from graphile_worker.cli.processes import Plan, Processes
from graphile_worker.cli.settings import WorkerSettings
from graphile_worker.cli.sources import app_at, client_for, crontab_file
from graphile_worker.cli.streams import flush_all
from graphile_worker.errors import (
    ConfigurationError,
    CrontabError,
    GraphileWorkerError,
    PoolStopped,
)
from graphile_worker.events import JobStarted
from graphile_worker.loading import load_app, load_crontab
from graphile_worker.options import WorkerOptions, default_schema
from graphile_worker.runner import Runner, found_tasks
from graphile_worker.sql.cleaning import CleanupTask
from graphile_worker.sync import Client
from graphile_worker.tasks import Tasks
from graphile_worker.worker.signals import heard_by

FOLDER = Path("tasks")

logger = logging.getLogger("graphile_worker")


def work(settings: WorkerSettings) -> int:
    """Do what the flags say; the exit code."""
    settings.check()
    if settings.schema_only:
        return _migrate(settings)
    if settings.cleanup:
        return _clean_up(settings)
    configure(settings.log_format)
    if settings.processes is not None and settings.parent is None:
        return _oversee(settings)
    make_loop = loop_factory(settings.loop)
    line = None if settings.parent is None else LineToParent(settings.parent)
    return _until_done(_worked(_runner(settings), settings, line), make_loop)


def _oversee(settings: WorkerSettings) -> int:
    # What makes no sense is said once, not by each process.
    WorkerOptions(**settings.given_options())
    loop_factory(settings.loop)
    if not settings.once and (crontab := crontab_file(settings.crontab)) is not None:
        load_crontab(crontab)
    assert settings.processes is not None
    plan = Plan(
        count=settings.processes,
        once=settings.once,
        max_memory=settings.max_memory,
        health_port=settings.health_port,
    )
    return _until_done(_overseen(plan))


async def _overseen(plan: Plan) -> int:
    return await Processes(plan).run()


def _migrate(settings: WorkerSettings) -> int:
    with _client(settings) as client:
        level = client.migrate()
    click.echo(f"schema {_schema(settings) or default_schema()} is up to date, at level {level}")
    return 0


def _clean_up(settings: WorkerSettings) -> int:
    known = found_tasks(_tasks(settings)) if _has_tasks(settings) else {}
    with _client(settings) as client:
        client.cleanup(settings.cleanup, task_identifiers_to_keep=list(known))
    click.echo(f"cleaned up: {', '.join(each.value for each in settings.cleanup)}")
    return 0


def _runner(settings: WorkerSettings) -> Runner:
    tasks = _tasks(settings)
    options = WorkerOptions(**settings.given_options())
    crontab = None if settings.once else crontab_file(settings.crontab)
    # A child never counts signals: its parent says whether one is the second.
    alone = settings.parent is None
    if isinstance(tasks, App):
        return tasks.worker(
            options,
            database=settings.connection,
            schema=settings.schema,
            crontab_file=crontab,
            handle_signals=alone,
        )
    return Runner(
        settings.connection, tasks, crontab_file=crontab, options=options, handle_signals=alone
    )


def _tasks(settings: WorkerSettings) -> Tasks[Any] | Path:
    if settings.app is not None:
        return load_app(settings.app)
    if FOLDER.is_dir():
        # A task may import what lies beside the folder.
        sys.path.insert(0, str(Path.cwd()))
        return FOLDER
    raise ConfigurationError(
        "no tasks: make a folder ./tasks with a file for each task, or name your app with "
        "--app package.module:app (or GRAPHILE_WORKER_APP)"
    )


def _has_tasks(settings: WorkerSettings) -> bool:
    return settings.app is not None or FOLDER.is_dir()


async def _worked(runner: Runner, settings: WorkerSettings, line: LineToParent | None) -> int:
    try:
        async with _surrounded(runner, settings, line):
            if settings.once:
                await runner.run_once()
            else:
                await runner.start()
                if settings.app is None and crontab_file(settings.crontab) is None:
                    logger.info("there is no file ./crontab, so no tasks recur")
                await runner.wait()
    except (asyncio.CancelledError, PoolStopped):
        # A signal came before there was anything to stop.
        if runner.forced_by is None:
            raise
    return 0 if runner.forced_by is None else 128 + runner.forced_by


@asynccontextmanager
async def _surrounded(
    runner: Runner, settings: WorkerSettings, line: LineToParent | None
) -> AsyncIterator[None]:
    """What is there beside a worker: a parent, or else signals of its own and its health."""
    if settings.max_jobs is not None:
        # Once, what is left of the jobs is for those that still run.
        end = runner.let_finish if line is None or settings.once else partial(line.say, DUE)
        _count_jobs(runner, settings.max_jobs, end)
    if line is None:
        async with health_server(settings.health_port, lambda: runner.is_ready):
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
    """What a person can act on is one line; libpq explains itself over several."""
    if isinstance(error, CrontabError):
        # One for each thing that is wrong.
        for problem in error.problems:
            click.echo(f"graphile-worker: {error.source}: {problem}", err=True)
        return
    text = " ".join(str(error).split()) or type(error).__name__
    click.echo(f"graphile-worker: {text}", err=True)


def _leave(code: int) -> None:
    flush_all()
    os._exit(code)


def _client(settings: WorkerSettings) -> Client:
    prepared = not settings.no_prepared_statements
    return client_for(settings.app, settings.connection, settings.schema, prepared=prepared)


def _schema(settings: WorkerSettings) -> str | None:
    app = app_at(settings.app)
    return settings.schema or (app.schema if app else None)


def cleanup_tasks(names: tuple[str, ...]) -> tuple[CleanupTask, ...]:
    """The steps of `--cleanup A,B --cleanup C`."""
    wanted = [name.strip() for listing in names for name in listing.split(",") if name.strip()]
    known = {each.value: each for each in CleanupTask}
    for name in wanted:
        if name not in known:
            raise ConfigurationError(f"--cleanup {name}: expected any of {', '.join(known)}")
    return tuple(known[name] for name in wanted)
