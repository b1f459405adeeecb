"""Flags over environment: what was given, and nothing about what holds otherwise."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import click

from graphile_worker.errors import ConfigurationError
from graphile_worker.options import RecoveryOptions, default_schema
from graphile_worker.sql.cleaning import CleanupTask

Command = Callable[..., Any]

AT_LEAST_1 = click.IntRange(min=1)


@dataclass(slots=True)
class DatabaseSettings:
    """Which database and which schema the command is about."""

    connection: str | None = None
    given_schema: str | None = None

    @property
    def schema(self) -> str:
        return self.given_schema or default_schema()


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSettings:
    """What the flags of the worker say."""

    connection: str | None
    schema: str | None
    app: str | None
    schema_only: bool
    once: bool
    cleanup: tuple[CleanupTask, ...]
    crontab: str | None
    jobs: int | None
    processes: int | None
    max_jobs: int | None
    max_memory: int | None
    max_pool_size: int | None
    poll_interval: int | None
    no_prepared_statements: bool
    no_listen: bool
    recovery_threshold: int | None
    no_recovery: bool
    loop: str | None
    log_format: str
    health_port: int | None
    parent: int | None

    def check(self) -> None:
        if self.once and self.schema_only:
            raise ConfigurationError("--once and --schema-only exclude each other")
        if self.no_recovery and self.recovery_threshold is not None:
            raise ConfigurationError("--no-recovery and --recovery-threshold exclude each other")
        if self.max_memory is not None and self.processes is None:
            raise ConfigurationError("--max-memory needs a parent that looks: add --processes 1")
        if self.processes is not None and sys.platform == "win32":
            raise ConfigurationError("--processes: not on Windows")

    def given_options(self) -> dict[str, Any]:
        """What was given of WorkerOptions, by its names there."""
        options: dict[str, Any] = {
            "schema": self.schema,
            "concurrency": self.jobs,
            "max_pool_size": self.max_pool_size,
            "poll_interval": _duration(self.poll_interval),
            "prepared_statements": False if self.no_prepared_statements else None,
            "listen": False if self.no_listen else None,
        }
        given = {name: value for name, value in options.items() if value is not None}
        if (threshold := _duration(self.recovery_threshold)) is not None:
            given["recovery"] = RecoveryOptions(threshold=threshold)
        if self.no_recovery:
            given["recovery"] = None
        return given


def _duration(milliseconds: int | None) -> timedelta | None:
    return None if milliseconds is None else timedelta(milliseconds=milliseconds)


def worker_options(function: Command) -> Command:
    """Add the flags of the worker to the command; they are the fields of WorkerSettings."""
    for option in reversed(WORKER_FLAGS):
        function = option(function)
    return function


WORKER_FLAGS = (
    click.option(
        "--app",
        envvar="GRAPHILE_WORKER_APP",
        metavar="MODULE:ATTRIBUTE",
        help="Your app (default: the folder ./tasks).",
    ),
    click.option("--schema-only", is_flag=True, help="Install or upgrade the schema, then exit."),
    click.option("--once", is_flag=True, help="Run what is ready, then exit."),
    click.option("--crontab", metavar="PATH", help="The crontab (default: ./crontab)."),
    click.option("-j", "--jobs", type=int, help="Jobs to run at once (default: 1)."),
    click.option(
        "-p",
        "--processes",
        type=AT_LEAST_1,
        help="Run so many worker processes under a parent that restarts them.",
    ),
    click.option(
        "--max-jobs",
        type=AT_LEAST_1,
        help="End after so many jobs; with --processes, be replaced.",
    ),
    click.option(
        "--max-memory",
        type=AT_LEAST_1,
        metavar="MB",
        help="Replace a process that holds more memory, in megabytes.",
    ),
    click.option(
        "-m", "--max-pool-size", type=int, help="Connections to the database (default: 10)."
    ),
    click.option(
        "--poll-interval",
        type=int,
        metavar="MS",
        help="Look for jobs at least this often, in milliseconds (default: 2000).",
    ),
    click.option(
        "--no-prepared-statements", is_flag=True, help="For PgBouncer before 1.21 and the like."
    ),
    click.option("--no-listen", is_flag=True, help="Poll only: no LISTEN, for PgBouncer."),
    click.option(
        "--recovery-threshold",
        type=int,
        metavar="MS",
        help="Others take this worker's jobs when it was silent for so long (default: 30000).",
    ),
    click.option(
        "--no-recovery", is_flag=True, help="Leave the jobs of dead workers locked for four hours."
    ),
    click.option(
        "--cleanup",
        multiple=True,
        metavar="STEPS",
        help="Clean up what nobody needs, then exit: "
        + ", ".join(each.value for each in CleanupTask)
        + ".",
    ),
    click.option(
        "--loop",
        type=click.Choice(["asyncio", "uvloop"]),
        help="The event loop (default: uvloop where it is installed).",
    ),
    click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        help="How log lines look (default: text).",
    ),
    click.option(
        "--health-port", type=int, metavar="PORT", help="Serve /livez and /readyz on this port."
    ),
    # What a parent tells the processes that it starts: the number of their line to it.
    click.option("--parent", type=int, hidden=True),
)


def database_options(function: Command) -> Command:
    """Add -c and -s to a command; `current_settings()` has the outcome."""
    for option in (
        click.option(
            "-s",
            "--schema",
            expose_value=False,
            callback=_remember("given_schema"),
            help="Schema of the queue (default: graphile_worker).",
        ),
        click.option(
            "-c",
            "--connection",
            expose_value=False,
            callback=_remember("connection"),
            help="Database: URL, name=value pairs or a bare name (default: DATABASE_URL).",
        ),
    ):
        function = option(function)
    return function


def current_settings() -> DatabaseSettings:
    return click.get_current_context().ensure_object(DatabaseSettings)


def _remember(name: str) -> Callable[[click.Context, click.Parameter, str | None], None]:
    def remember(context: click.Context, _option: click.Parameter, value: str | None) -> None:
        if value is not None:
            setattr(context.ensure_object(DatabaseSettings), name, value)

    return remember
