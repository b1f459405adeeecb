"""Catalogue: every setting of the command, with its name, its kind, its flag and its variable.

It is made from the fields of WorkerOptions and of CommandOptions: what is new there is here, too.
"""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from graphile_worker.options import WorkerOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandOptions:
    """What only the command can be told, not a worker in a program; `max_memory` in megabytes."""

    connection: str | None = None
    app: str | None = None
    tasks: Path | None = None
    crontab: Path | None = None
    processes: int | None = None
    max_jobs: int | None = None
    max_memory: int | None = None
    loop: Literal["asyncio", "uvloop"] | None = None
    log_format: Literal["text", "json"] = "text"
    health_port: int | None = None
    health_host: str = "127.0.0.1"
    watch: bool = False


class SettingKind(StrEnum):
    TEXT = "text"
    NUMBER = "number"
    SWITCH = "switch"
    DURATION = "duration"
    CHOICE = "choice"
    PATH = "path"
    GROUP = "part"  # options that have fields of their own, and may be off as a whole


KIND_BY_TYPE: Mapping[Any, SettingKind] = {
    str: SettingKind.TEXT,
    int: SettingKind.NUMBER,
    bool: SettingKind.SWITCH,
    timedelta: SettingKind.DURATION,
    Path: SettingKind.PATH,
}

# Flags that are not called like their setting, mostly as the reference calls them.
FLAG_OVERRIDES: Mapping[str, tuple[str, ...]] = {
    "connection": ("-c", "--connection"),
    "schema": ("-s", "--schema"),
    "concurrency": ("-j", "--jobs"),
    "max_pool_size": ("-m", "--max-pool-size"),
    "processes": ("-p", "--processes"),
    "watch": ("-w", "--watch"),
    "recovery.lease_duration": ("--lease-duration",),
    "recovery.heartbeat_interval": ("--heartbeat-interval",),
    "recovery.rescue_interval": ("--rescue-interval",),
    "recovery.crash_retry_delay": ("--crash-retry-delay",),
    "recovery.max_crashes": ("--max-crashes",),
}

VARIABLE_OVERRIDES: Mapping[str, str] = {"connection": "DATABASE_URL"}

MINIMUMS: Mapping[str, int] = {"processes": 1, "max_jobs": 1, "max_memory": 1}

# They may hold a password.
SECRET_SETTINGS = frozenset({"connection"})


def format_variable(name: str) -> str:
    return "GRAPHILE_WORKER_" + name.upper().replace(".", "_")


def format_flag(name: str) -> str:
    return "--" + name.replace(".", "-").replace("_", "-")


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One setting; its name is that in a file, with a dot where a table begins."""

    name: str
    kind: SettingKind
    can_be_off: bool = False
    choices: tuple[str, ...] = ()
    default: Any = None  # where it stands beside the name of the field

    @property
    def variable(self) -> str:
        plain = format_variable(self.name)
        return VARIABLE_OVERRIDES.get(self.name, plain)

    @property
    def flags(self) -> tuple[str, ...]:
        plain = format_flag(self.name)
        return FLAG_OVERRIDES.get(self.name, (plain,))

    @property
    def flag(self) -> str:
        """The long one."""
        return self.flags[-1]

    @property
    def is_toggle(self) -> bool:
        """Is it said by `--it` and `--no-it`?"""
        return self.kind in (SettingKind.SWITCH, SettingKind.GROUP)

    @property
    def minimum(self) -> int | None:
        return MINIMUMS.get(self.name)

    @property
    def is_secret(self) -> bool:
        return self.name in SECRET_SETTINGS

    @property
    def parent_groups(self) -> list[str]:
        """The parts around it, from the outside in."""
        words = self.name.split(".")
        return [".".join(words[:count]) for count in range(1, len(words))]


def iter_settings(options: type, prefix: str = "") -> Iterator[Setting]:
    """A setting for each field of a class of options, and for those of its parts."""
    for field, hint in _iter_hints(options):
        kind, may_be_off, plain = _parse_hint(hint)
        name = prefix + field.name
        # A part that is always there is only a place for its fields.
        if kind is not SettingKind.GROUP or may_be_off:
            yield Setting(
                name=name,
                kind=kind,
                can_be_off=may_be_off,
                choices=get_args(plain) if kind is SettingKind.CHOICE else (),
                default=None if field.default is MISSING else field.default,
            )
        if kind is SettingKind.GROUP:
            yield from iter_settings(plain, f"{name}.")


def iter_groups(options: type, prefix: str = "") -> Iterator[tuple[str, type]]:
    """The name and the class of each part, and of the parts in it."""
    for field, hint in _iter_hints(options):
        kind, _, plain = _parse_hint(hint)
        if kind is SettingKind.GROUP:
            name = prefix + field.name
            yield name, plain
            yield from iter_groups(plain, f"{name}.")


def build_arguments(options: type, values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """What was given of a class of options, as the arguments that make one."""
    found: dict[str, Any] = {}
    for field in fields(options):
        name = prefix + field.name
        if name not in GROUPS:
            if name in values:
                found[field.name] = values[name]
            continue
        inner = build_arguments(GROUPS[name], values, f"{name}.")
        if values.get(name) is False:
            found[field.name] = None
        elif inner or values.get(name):
            found[field.name] = GROUPS[name](**inner)
    return found


def _iter_hints(options: type) -> Iterator[tuple[Field[Any], Any]]:
    hints = get_type_hints(options)
    return ((field, hints[field.name]) for field in fields(options))


def _parse_hint(hint: Any) -> tuple[SettingKind, bool, Any]:
    """Its kind, whether it may be None, and what it is otherwise."""
    if get_origin(hint) in (Union, UnionType):
        [plain] = [each for each in get_args(hint) if each is not NoneType]
        kind, _, plain = _parse_hint(plain)
        return kind, True, plain
    if get_origin(hint) is Literal:
        return SettingKind.CHOICE, False, hint
    if is_dataclass(hint):
        return SettingKind.GROUP, False, hint
    if hint not in KIND_BY_TYPE:
        raise TypeError(
            f"no setting can be of the type {hint}: say in _cli/settings/definitions.py how"
        )
    return KIND_BY_TYPE[hint], False, hint


OPTION_CLASSES: tuple[type, ...] = (CommandOptions, WorkerOptions)
SETTINGS = {each.name: each for root in OPTION_CLASSES for each in iter_settings(root)}
GROUPS = dict(part for root in OPTION_CLASSES for part in iter_groups(root))
