"""Flags of the command: one for each setting, remembered wherever in the line they stand."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import click

from graphile_worker._cli.settings.definitions import (
    SETTINGS,
    Setting,
    SettingKind,
    format_flag,
)
from graphile_worker._cli.settings.layers import Settings, SettingSource, SettingValue
from graphile_worker._cli.settings.values import (
    InvalidValue,
    describe_expected,
    format_value,
    parse_text,
)
from graphile_worker._support.renamed import RENAMED_SETTINGS

Command = Callable[..., Any]

METAVARS: Mapping[str, str] = {
    "app": "MODULE:ATTRIBUTE",
    "max_memory": "MB",
    "health_port": "PORT",
    "health_host": "ADDRESS",
}

HELP: Mapping[str, str] = {
    "connection": "Database: URL, name=value pairs or a bare name (default: DATABASE_URL).",
    "schema": "Schema of the queue (default: graphile_worker).",
    "ext_schema": "Schema for what only this worker needs (default: that of the queue and _ext).",
    "app": "Your app (default: the folder ./tasks).",
    "tasks": "The folder with your tasks (default: ./tasks).",
    "crontab": "The crontab (default: ./crontab).",
    "processes": "Run so many worker processes under a parent that restarts them.",
    "max_jobs": "End after so many jobs; with --processes, be replaced.",
    "max_memory": "Replace a process that holds more memory, in megabytes.",
    "loop": "The event loop (default: uvloop where it is installed).",
    "log_format": "How log lines look.",
    "health_port": "Serve /livez and /readyz on this port.",
    "health_host": "Address of the health port; :: means all.",
    "watch": "Start anew when tasks, modules, the crontab or the file with settings change.",
    "concurrency": "Jobs to run at once.",
    "max_pool_size": "Connections to the database.",
    "poll_interval": "Look for jobs at least this often.",
    "listen": "Hear of new jobs by LISTEN, or poll only, for PgBouncer.",
    "prepared_statements": "Not for PgBouncer before 1.21 and the like.",
    "use_local_time": "The clock of this machine says what is due, or that of the database.",
    "cancel_after": "A stop asks running tasks to give up after so long.",
    "shutdown_timeout": "A stop cancels them after so long.",
    "interrupted_job_retry_delay": "How long a job waits that was handed back by a stop.",
    "min_reset_locked_interval": "Look for locks of four hours at least so far apart.",
    "max_reset_locked_interval": "Look for locks of four hours at most so far apart.",
    "local_queue": "Fetch jobs ahead, or only when a worker is free.",
    "local_queue.size": "Fetch so many ahead (default: what ends within a tenth of a second).",
    "local_queue.ttl": "With a size: hand back what nobody took for so long.",
    "local_queue.refetch_delay": "With a size: wait a little after a fetch that brought few jobs.",
    "local_queue.refetch_delay.duration": "So long, on average.",
    "local_queue.refetch_delay.threshold": "After a fetch of at most so many.",
    "local_queue.refetch_delay.max_abort_threshold": "Until at most so many were announced.",
    "local_queue.max_bytes": "Hold payloads of at most this many bytes, running or waiting.",
    "max_payload_bytes": "Fail a job permanently if its payload has more bytes.",
    "complete_batch_delay": "Gather the ends of jobs for so long, to write them together.",
    "fail_batch_delay": "The same for attempts that fail.",
    "recovery": "Others take the jobs of dead workers soon, or after four hours.",
    "recovery.lease_duration": "Others take this worker's jobs after such a silence.",
    "recovery.heartbeat_interval": "Say so often that it lives (default: a sixth of the lease).",
    "recovery.rescue_interval": "Look for dead ones so often (default: a third of the lease).",
    "recovery.crash_retry_delay": "How long a job waits that is taken from a dead one.",
    "recovery.max_crashes": "Quarantine a job that was running at so many recoveries.",
    "warn_blocked_after": "Name a task in the log that stands still for so long.",
    "max_runaway_threads": "Pause a task at this many functions past their timeout.",
    "task_processes.max_jobs": "Replace a process of tasks after so many jobs.",
    "task_processes.max_memory": "Replace one that holds more megabytes after a job.",
    "task_processes.memory_limit": "Refuse its tasks more megabytes.",
    "executables.environment": "What executables see of the worker's environment.",
    "executables.timeout": "End an executable that takes longer.",
    "executables.max_output_bytes": "Log no more of what an executable says.",
    "allow_unsafe_tasks": "Skip the check of who may change tasks, crontab and config.",
}


@dataclass(slots=True)
class Flags:
    """What the flags said so far, and the file that one of them names."""

    values: dict[str, SettingValue] = field(default_factory=dict)
    config: str | None = None

    def resolve_settings(self) -> Settings:
        return Settings.collect(self.values, self.config)


def current_flags() -> Flags:
    return click.get_current_context().ensure_object(Flags)


def current_settings() -> Settings:
    """What the flags so far, the environment and the file say."""
    return current_flags().resolve_settings()


def setting_flags(*names: str) -> Callable[[Command], Command]:
    """Add -C and the flags of these settings to a command; `current_settings()` has the outcome."""

    def add(function: Command) -> Command:
        options = [_build_option(SETTINGS[name]) for name in names]
        options += [
            reject_flag(format_flag(old), SETTINGS[new].flag)
            for old, new in RENAMED_SETTINGS.items()
            if new in names
        ]
        for option in reversed([_build_config_option(), *options]):
            function = option(function)
        return function

    return add


def reject_flag(old: str, new: str) -> Callable[[Command], Command]:
    """Add an old flag to a command, which is rejected with the new one in the message."""

    def reject(context: click.Context, _option: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise click.UsageError(f"{old} is now called {new}.", context)

    return click.option(
        old,
        "renamed" + old.replace("-", "_"),
        hidden=True,
        expose_value=False,
        # With or without a value.
        is_flag=False,
        flag_value="",
        default=None,
        callback=reject,
    )


class SettingParam(click.ParamType):  # type: ignore[type-arg]  # generic in newer ones only
    """The text of a flag, read as its setting says."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self.name = setting.kind.value

    def convert(
        self, value: str, parameter: click.Parameter | None, context: click.Context | None
    ) -> SettingValue:
        try:
            found = parse_text(self._setting, value)
        except InvalidValue as error:
            self.fail(f"{error}.", parameter, context)
        # Wrapped, as it may be None.
        return SettingValue(found, SettingSource.FLAG, self._setting.flag)


def _build_option(setting: Setting) -> Callable[[Command], Command]:
    argument = setting.name.replace(".", "_")
    common: dict[str, Any] = {
        "default": None,
        "expose_value": False,
        "callback": _build_callback(setting),
        "help": _build_help(setting),
    }
    if setting.is_toggle:
        both = f"{setting.flag}/--no-{setting.flag[2:]}"
        return click.option(*setting.flags[:-1], both, argument, **common)
    return click.option(
        *setting.flags,
        argument,
        type=SettingParam(setting),
        metavar=_build_metavar(setting),
        **common,
    )


def _build_help(setting: Setting) -> str:
    said = HELP.get(setting.name, f"Option {setting.name}: {describe_expected(setting)}.")
    if setting.default is None:
        return said
    return f"{said[:-1]} (default: {format_value(setting, setting.default)})."


def _build_metavar(setting: Setting) -> str:
    if setting.kind is SettingKind.CHOICE:
        return "|".join(setting.choices)
    return METAVARS.get(setting.name, setting.kind.value.upper())


def _build_callback(setting: Setting) -> Callable[[click.Context, click.Parameter, Any], None]:
    def remember(context: click.Context, _option: click.Parameter, value: Any) -> None:
        if value is None:
            return
        if not isinstance(value, SettingValue):
            flag = setting.flag if value else f"--no-{setting.flag[2:]}"
            value = SettingValue(value, SettingSource.FLAG, flag)
        context.ensure_object(Flags).values[setting.name] = value

    return remember


def _build_config_option() -> Callable[[Command], Command]:
    def remember(context: click.Context, _option: click.Parameter, value: str | None) -> None:
        if value is not None:
            context.ensure_object(Flags).config = value

    return click.option(
        "-C",
        "--config",
        metavar="PATH",
        expose_value=False,
        callback=remember,
        help="File with settings (default: ./graphile-worker.toml, or in ./pyproject.toml).",
    )
