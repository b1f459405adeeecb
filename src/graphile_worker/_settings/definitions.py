"""Settings: every option of the command, made from the fields of its option classes."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from graphile_worker._support.lazy_dataclass import LazyKeywordDataclass
from graphile_worker._support.option_fields import HelpGroup, OptionField, option, split_optional
from graphile_worker.errors import ConfigurationError
from graphile_worker.options import WorkerOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandOptions:
    """Options of the command that a worker inside a program does not have."""

    connection: str | None = option(
        None,
        help="Database URL or connection string",
        default_text="DATABASE_URL",
        detail="For example `postgres://me@host/shop`, `host=db dbname=shop` or `shop`.",
        flags=("-c", "--connection"),
        variable="DATABASE_URL",
        is_secret=True,
        help_group=HelpGroup.COMMON,
    )
    shards: str | None = option(
        None,
        help="Databases of all shards",
        default_text="one database",
        detail="Names and addresses, for example `a=postgres://db1/jobs b=postgres://db2/jobs`. "
        "Replaces `connection` for the worker, `migrate` and `shards`.",
        see="operations/shards.md",
        metavar="NAME=URL …",
        is_secret=True,
    )
    new_shards: str | None = option(
        None,
        help="Shards that were added",
        default_text="none",
        detail="Names, separated by commas.",
        see="operations/shards.md#add-a-shard",
        metavar="NAMES",
    )
    draining_shards: str | None = option(
        None,
        help="Shards that get no more keys",
        default_text="none",
        detail="Names, separated by commas.",
        see="operations/shards.md#remove-a-shard",
        metavar="NAMES",
    )
    app: str | None = option(
        None,
        help="App that defines the tasks",
        default_text="the folder ./tasks",
        detail="`:app` may be omitted.",
        see="guides/tasks.md",
        metavar="MODULE:ATTRIBUTE",
        help_group=HelpGroup.COMMON,
    )
    tasks: Path | None = option(
        None,
        help="Folder that contains the tasks",
        default_text="./tasks",
        detail="Excludes an app.",
        see="operations/running-workers.md",
        help_group=HelpGroup.COMMON,
    )
    crontab: Path | None = option(
        None,
        help="Crontab file",
        default_text="./crontab",
        detail="Not read with `--once`.",
        see="guides/cron.md",
        help_group=HelpGroup.COMMON,
    )
    processes: int | None = option(
        None,
        help="Number of worker processes",
        default_text="none",
        see="operations/multiple-processes.md",
        minimum=1,
        flags=("-p", "--processes"),
        help_group=HelpGroup.CONCURRENCY,
    )
    max_jobs: int | None = option(
        None,
        help="Exit after this many jobs",
        default_text="no limit",
        detail="With `--processes`, another process replaces it.",
        see="operations/multiple-processes.md",
        minimum=1,
        help_group=HelpGroup.CONCURRENCY,
    )
    max_memory: int | None = option(
        None,
        help="Replace a process above this many MB",
        default_text="no limit",
        detail="Needs `--processes` or `--watch`.",
        see="operations/multiple-processes.md",
        metavar="MB",
        minimum=1,
        help_group=HelpGroup.CONCURRENCY,
    )
    loop: Literal["asyncio", "uvloop"] | None = option(
        None,
        help="Event loop",
        default_text="uvloop if installed",
        see="operations/running-workers.md#event-loop",
    )
    log_format: Literal["text", "json"] = option(
        "text",
        help="Format of log lines",
        see="guides/logging.md#log-format",
        help_group=HelpGroup.COMMON,
    )
    health_port: int | None = option(
        None,
        help="Port of /livez, /readyz and /metrics",
        default_text="no server",
        see="operations/health-checks.md",
        metavar="PORT",
        help_group=HelpGroup.COMMON,
    )
    health_host: str = option(
        "127.0.0.1",
        help="Address of the health check port",
        detail="`::` listens on all addresses.",
        see="operations/health-checks.md",
        metavar="ADDRESS",
        help_group=HelpGroup.COMMON,
    )
    metrics: Literal["tasks", "total", "off"] = option(
        "tasks",
        help="Metrics on the health check port: /metrics",
        detail="`tasks` has histograms for each task, `total` only for all tasks together.",
        see="operations/monitoring.md",
    )
    actor: str | None = option(
        None,
        help="Name for the audit of changes",
        default_text="your login name",
        see="operations/audit.md",
        metavar="NAME",
    )
    watch: bool = option(
        False,
        help="Restart the worker when a file changes",
        detail="Watches tasks, imported modules, the crontab and the config file. "
        "Excludes `--once`, `--schema-only` and `--cleanup`.",
        see="operations/running-workers.md#reload-during-development",
        flags=("-w", "--watch"),
        help_group=HelpGroup.COMMON,
    )

    def __post_init__(self) -> None:
        if self.max_memory is not None and self.processes is None and not self.watch:
            raise ConfigurationError("--max-memory needs a supervisor. Add --processes 1.")
        if sys.platform == "win32" and (self.processes is not None or self.watch):
            raise ConfigurationError(
                "--processes and --watch are not available on Windows. Remove them."
            )


class SettingKind(StrEnum):
    TEXT = "text"
    NUMBER = "number"
    SWITCH = "switch"
    DURATION = "duration"
    CHOICE = "choice"
    PATH = "path"
    LIST = "list"  # of text
    GROUP = "group"  # an option class inside another, which can be off as a whole


KIND_BY_TYPE: Mapping[Any, SettingKind] = {
    str: SettingKind.TEXT,
    int: SettingKind.NUMBER,
    bool: SettingKind.SWITCH,
    timedelta: SettingKind.DURATION,
    Path: SettingKind.PATH,
    Sequence[str]: SettingKind.LIST,
}


CAMEL_CASE_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def format_variable(name: str) -> str:
    return "GRAPHILE_WORKER_" + name.upper().replace(".", "_")


def format_flag(name: str) -> str:
    return "--" + name.replace(".", "-").replace("_", "-")


class Setting(LazyKeywordDataclass):
    """One setting. Its name is its key in a config file, with a dot after the name of a table."""

    name: str
    kind: SettingKind
    can_be_off: bool
    choices: tuple[str, ...]
    field: OptionField
    help_group: HelpGroup

    @property
    def variable(self) -> str:
        return self.field.variable or format_variable(self.name)

    @property
    def flags(self) -> tuple[str, ...]:
        return self.field.flags or (format_flag(self.name),)

    @property
    def flag(self) -> str:
        """The long flag."""
        return self.flags[-1]

    @property
    def is_toggle(self) -> bool:
        """Whether it has the flags `--name` and `--no-name`."""
        return self.kind in (SettingKind.SWITCH, SettingKind.GROUP)

    @property
    def default(self) -> Any:
        if self.kind is SettingKind.GROUP:
            return self.field.default is not None
        return self.field.default

    @property
    def parent_groups(self) -> list[str]:
        """The groups around it, the outermost first."""
        parts = self.name.split(".")
        return [".".join(parts[:count]) for count in range(1, len(parts))]


def iter_settings(
    options: type, prefix: str = "", outer_group: HelpGroup = HelpGroup.ADVANCED
) -> Iterator[Setting]:
    """Yield a setting for each field of an option class and of the classes inside it."""
    for each in fields(options):
        plain, can_be_off = split_optional(each.type)
        kind, name = _find_kind(plain), prefix + each.name
        declared: OptionField = each.metadata["option"]
        help_group = declared.help_group or outer_group
        # A group that is always on has no value.
        if kind is not SettingKind.GROUP or can_be_off:
            yield Setting(
                name=name,
                kind=kind,
                can_be_off=can_be_off,
                choices=get_args(plain) if kind is SettingKind.CHOICE else (),
                field=declared,
                help_group=help_group,
            )
        if kind is SettingKind.GROUP:
            yield from iter_settings(plain, f"{name}.", help_group)


def _find_kind(annotation: Any) -> SettingKind:
    if get_origin(annotation) is Literal:
        return SettingKind.CHOICE
    if is_dataclass(annotation):
        return SettingKind.GROUP
    if annotation not in KIND_BY_TYPE:
        raise TypeError(f"no kind of setting for {annotation}. Add it to KIND_BY_TYPE.")
    return KIND_BY_TYPE[annotation]


def build_arguments(options: type, values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the keyword arguments that create an option class with these settings."""
    arguments: dict[str, Any] = {}
    for each in fields(options):
        name = prefix + each.name
        group: Any = split_optional(each.type)[0]
        if _find_kind(group) is not SettingKind.GROUP:
            if name in values:
                arguments[each.name] = values[name]
            continue
        inner = build_arguments(group, values, f"{name}.")
        if values.get(name) is False:
            arguments[each.name] = None
        elif inner or values.get(name):
            arguments[each.name] = group(**inner)
    return arguments


OPTION_CLASSES: tuple[type, ...] = (CommandOptions, WorkerOptions)
SETTINGS = {each.name: each for root in OPTION_CLASSES for each in iter_settings(root)}
GROUPS = {group for each in SETTINGS.values() for group in each.parent_groups}


def find_similar(name: str) -> Setting | None:
    """Return the setting that a misspelled key or variable, without its prefix, may mean."""
    # Imported for a mistake only, as every worker waits for the imports.
    import difflib

    known = {each.flag[2:].replace("-", "_"): each for each in SETTINGS.values()}
    known |= {each.variable.lower(): each for each in SETTINGS.values()}
    known |= {each.name.replace(".", "_"): each for each in SETTINGS.values()}
    plain = CAMEL_CASE_BOUNDARY.sub("_", name).lower().replace(".", "_")
    near = difflib.get_close_matches(plain, known, n=1)
    return known[near[0]] if near else None
