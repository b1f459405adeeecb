"""`graphile-worker` without a subcommand: run a worker until a signal, or once."""

import asyncio
import itertools
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import click
import psycopg

from graphile_worker._cli.error_output import print_error
from graphile_worker._cli.event_loop import LoopFactory, choose_loop_factory
from graphile_worker._cli.log_format import configure_logging, restore_logging
from graphile_worker._cli.settings.config_file import warn_group_writable
from graphile_worker._cli.settings.layers import Settings, SettingSource
from graphile_worker._cli.settings.resolve import (
    open_client,
    open_shards,
    resolve_app,
    resolve_crontab,
    resolve_database,
    resolve_schema,
    resolve_task_source,
)
from graphile_worker._cli.streams import flush_standard_streams
from graphile_worker._cli.supervisor.parent_pipe import (
    REPLACEMENT_DUE,
    ParentPipe,
    compute_stop_timeout,
)
from graphile_worker._discovery.discovery import load_crontab
from graphile_worker._settings.definitions import CommandOptions
from graphile_worker._sql.plans.cleanup import CleanupTask
from graphile_worker._support.text import suggest
from graphile_worker._worker.signals import handle_signals
from graphile_worker.errors import (
    ConfigurationError,
    GraphileWorkerError,
    WorkerStoppedError,
)
from graphile_worker.events import JobStarted
from graphile_worker.runner import Runner, build_runner, resolve_tasks

# Seconds that the threads of the event loop may still run after the worker has stopped.
EXECUTOR_TIMEOUT_SECONDS = 1.0

logger = logging.getLogger("graphile_worker")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunMode:
    """The mode of the command. `parent` and `parent_metrics` are pipes to a supervisor."""

    once: bool = False
    schema_only: bool = False
    cleanup: tuple[CleanupTask, ...] = ()
    parent: int | None = None
    parent_metrics: int | None = None

    def __post_init__(self) -> None:
        if self.once and self.schema_only:
            raise ConfigurationError("--once and --schema-only exclude each other. Remove one.")

    @property
    def one_shot_flag(self) -> str | None:
        """The flag after which the command ends without a signal."""
        flags = {"--once": self.once, "--schema-only": self.schema_only, "--cleanup": self.cleanup}
        return next((flag for flag, is_set in flags.items() if is_set), None)

    def check_settings(self, settings: Settings) -> None:
        """Reject --watch beside a one-shot flag, which ignores `watch` of other sources."""
        watch = settings.values.get("watch")
        if self.one_shot_flag and watch and watch.value and watch.source is SettingSource.FLAG:
            raise ConfigurationError(
                f"{self.one_shot_flag} and --watch exclude each other. Remove one."
            )


def run_command(mode: RunMode, settings: Settings) -> int:
    """Run the command in this mode, and return the exit code."""
    command = settings.command_options
    mode.check_settings(settings)
    if mode.schema_only:
        return _migrate(settings)
    if mode.cleanup:
        return _clean_up(mode.cleanup, settings)
    configure_logging(command.log_format)
    warn_group_writable(settings.config, allow_unsafe=bool(settings.value("allow_unsafe_tasks")))
    if mode.parent is None and (command.processes is not None or _is_watching(mode, settings)):
        return _run_supervisor(mode, settings)
    if command.watch:
        # Compiled files are matched by second and size, so one could hide a change.
        sys.dont_write_bytecode = True
    make_loop = choose_loop_factory(command.loop)
    pipe = None
    if mode.parent is not None:
        timeout = compute_stop_timeout(settings.worker_options.shutdown_timeout)
        pipe = ParentPipe(mode.parent, timeout)
    worker = _run_worker(_build_runner(mode, settings), mode, settings, pipe)
    return _run_until_done(worker, make_loop)


def _is_watching(mode: RunMode, settings: Settings) -> bool:
    return settings.command_options.watch and mode.one_shot_flag is None


def _run_supervisor(mode: RunMode, settings: Settings) -> int:
    # Imports the health server, which a worker without a port does not need.
    from graphile_worker._cli.reload import FileWatcher
    from graphile_worker._cli.supervisor.supervisor import Supervisor, SupervisorConfig
    from graphile_worker._cli.worker_endpoints import has_metrics, locate_queue

    # Mistakes are reported here once, not by each process.
    command, options = settings.command_options, settings.worker_options
    choose_loop_factory(command.loop)
    is_watching = _is_watching(mode, settings)
    # With --watch, the supervisor waits until a broken crontab is fixed.
    if not mode.once and not is_watching and (crontab := resolve_crontab(settings)) is not None:
        load_crontab(crontab, allow_unsafe=options.allow_unsafe_tasks)
    config = SupervisorConfig(
        process_count=command.processes or 1,
        stop_timeout=compute_stop_timeout(options.shutdown_timeout),
        once=mode.once,
        max_memory=command.max_memory,
        health_port=command.health_port,
        health_host=command.health_host,
        has_metrics=has_metrics(command),
        queue_location=locate_queue(settings),
    )
    watcher = FileWatcher(settings) if is_watching else None

    async def supervise() -> int:
        return await Supervisor(config, watcher).run()

    return _run_until_done(supervise())


def _migrate(settings: Settings) -> int:
    settings = settings.with_app(resolve_app(settings))
    with open_shards(settings) as client:
        level = client.migrate()
    click.echo(f"schema {resolve_schema(settings)} is up to date, at level {level}")
    return 0


def _clean_up(steps: Sequence[CleanupTask], settings: Settings) -> int:
    tasks = resolve_task_source(settings)
    settings = settings.with_app(tasks)
    known = {} if tasks is None else resolve_tasks(tasks, settings.worker_options)
    with open_client(settings) as client:
        client.cleanup(steps, task_identifiers_to_keep=list(known))
    click.echo(f"cleaned up: {', '.join(each.value for each in steps)}")
    return 0


def _build_runner(mode: RunMode, settings: Settings) -> Runner:
    tasks = resolve_task_source(settings)
    if tasks is None:
        raise ConfigurationError(
            "no tasks configured. Create a folder ./tasks with a file for each task, or pass "
            "--app package.module:app (or set GRAPHILE_WORKER_APP, or app in graphile-worker.toml)."
        )
    restore_logging(warns_about_format="log_format" in settings.values)
    settings = settings.with_app(tasks)
    app: str | None = settings.value("app")
    return build_runner(
        resolve_database(settings),
        tasks,
        crontab_file=None if mode.once else resolve_crontab(settings),
        options=settings.worker_options,
        # A supervised process does not count signals: its supervisor decides which is the second.
        handle_signals=mode.parent is None,
        task_process_module=None if app is None else app.partition(":")[0],
    )


async def _run_worker(
    runner: Runner, mode: RunMode, settings: Settings, pipe: ParentPipe | None
) -> int:
    try:
        async with _attach_controls(runner, mode, settings.command_options, pipe):
            if mode.once:
                await runner.run_once()
            else:
                await runner.start()
                if settings.value("app") is None and resolve_crontab(settings) is None:
                    logger.debug("no ./crontab found, no scheduled tasks")
                await runner.wait()
    except (asyncio.CancelledError, WorkerStoppedError):
        # A signal arrived while the worker was starting.
        if runner.exit_signal is None:
            raise
    return 0 if runner.exit_signal is None else 128 + runner.exit_signal


@asynccontextmanager
async def _attach_controls(
    runner: Runner, mode: RunMode, command: CommandOptions, pipe: ParentPipe | None
) -> AsyncIterator[None]:
    """Connect a worker to its supervisor, or else start its health server."""
    if command.max_jobs is not None:
        # With --once no process replaces this one.
        end = runner.finish if pipe is None or mode.once else partial(pipe.send, REPLACEMENT_DUE)
        _call_after_jobs(runner, command.max_jobs, end)
    async with AsyncExitStack() as stack:
        if pipe is not None:
            if mode.parent_metrics is not None:
                from graphile_worker._cli.worker_endpoints import send_metrics

                stack.enter_context(send_metrics(runner, command, mode.parent_metrics))
            stack.enter_context(handle_signals(runner._stop_on_signal))
            await stack.enter_async_context(pipe.attach_runner(runner))
        elif command.health_port is not None:
            from graphile_worker._cli.worker_endpoints import serve_endpoints

            await stack.enter_async_context(serve_endpoints(runner, command))
        yield


def _call_after_jobs(runner: Runner, count: int, callback: Callable[[], object]) -> None:
    """Call the function when the last of these jobs starts."""
    numbers = itertools.count(1)

    @runner.hooks.on(JobStarted)
    def count_job(event: JobStarted) -> None:
        if next(numbers) == count:
            callback()


def _run_until_done(work: Coroutine[Any, Any, int], make_loop: LoopFactory | None = None) -> int:
    """Run to the end, and exit even if a task ignores its cancellation or blocks a thread."""
    with asyncio.Runner(loop_factory=make_loop) as loop:
        try:
            code = loop.run(_get_exit_code(work))
            loop.run(_shut_down_executor())
        except KeyboardInterrupt:
            return 130
        if asyncio.all_tasks(loop.get_loop()):
            # Such a task would keep the loop from closing.
            flush_standard_streams()
            os._exit(code)
    return code


async def _shut_down_executor() -> None:
    """Wait for the threads of the event loop, for example those of `asyncio.to_thread`.

    After a timeout the asyncio task that waits for them is still running.
    """
    shutdown = asyncio.create_task(asyncio.get_running_loop().shutdown_default_executor())
    await asyncio.wait([shutdown], timeout=EXECUTOR_TIMEOUT_SECONDS)


async def _get_exit_code(work: Coroutine[Any, Any, int]) -> int:
    try:
        return await work
    except (GraphileWorkerError, psycopg.Error, OSError) as error:
        print_error(error)
        return getattr(error, "exit_code", 1)


def parse_cleanup_steps(names: tuple[str, ...]) -> tuple[CleanupTask, ...]:
    """Return the steps of `--cleanup A,B --cleanup C`."""
    requested = [name.strip() for listing in names for name in listing.split(",") if name.strip()]
    known = {each.value: each for each in CleanupTask}
    for name in requested:
        if name not in known:
            raise ConfigurationError(
                f"unknown cleanup step {name!r}{suggest(name, known)} Steps: {', '.join(known)}"
            )
    if names and not requested:
        raise ConfigurationError(f"--cleanup has no step. Steps: {', '.join(known)}")
    return tuple(known[name] for name in requested)
