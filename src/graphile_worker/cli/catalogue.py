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


class Kind(StrEnum):
    TEXT = "text"
    NUMBER = "number"
    SWITCH = "switch"
    DURATION = "duration"
    CHOICE = "choice"
    PATH = "path"
    PART = "part"  # options that have fields of their own, and may be off as a whole


KINDS: Mapping[Any, Kind] = {
    str: Kind.TEXT,
    int: Kind.NUMBER,
    bool: Kind.SWITCH,
    timedelta: Kind.DURATION,
    Path: Kind.PATH,
}

# Flags that are not called like their setting, mostly as the reference calls them.
FLAGS: Mapping[str, tuple[str, ...]] = {
    "connection": ("-c", "--connection"),
    "schema": ("-s", "--schema"),
    "concurrency": ("-j", "--jobs"),
    "max_pool_size": ("-m", "--max-pool-size"),
    "processes": ("-p", "--processes"),
    "watch": ("-w", "--watch"),
}

VARIABLES: Mapping[str, str] = {"connection": "DATABASE_URL"}

LEAST: Mapping[str, int] = {"processes": 1, "max_jobs": 1, "max_memory": 1}

# They may hold a password.
SECRET = frozenset({"connection"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One setting; its name is that in a file, with a dot where a table begins."""

    name: str
    kind: Kind
    may_be_off: bool = False
    choices: tuple[str, ...] = ()
    default: Any = None  # where it stands beside the name of the field

    @property
    def variable(self) -> str:
        plain = "GRAPHILE_WORKER_" + self.name.upper().replace(".", "_")
        return VARIABLES.get(self.name, plain)

    @property
    def flags(self) -> tuple[str, ...]:
        plain = "--" + self.name.replace(".", "-").replace("_", "-")
        return FLAGS.get(self.name, (plain,))

    @property
    def flag(self) -> str:
        """The long one."""
        return self.flags[-1]

    @property
    def is_switched(self) -> bool:
        """Is it said by `--it` and `--no-it`?"""
        return self.kind in (Kind.SWITCH, Kind.PART)

    @property
    def least(self) -> int | None:
        return LEAST.get(self.name)

    @property
    def is_secret(self) -> bool:
        return self.name in SECRET

    @property
    def holders(self) -> list[str]:
        """The parts around it, from the outside in."""
        words = self.name.split(".")
        return [".".join(words[:count]) for count in range(1, len(words))]


def settings_of(options: type, inside: str = "") -> Iterator[Setting]:
    """A setting for each field of a class of options, and for those of its parts."""
    for field, hint in _hints(options):
        kind, may_be_off, plain = _read(hint)
        name = inside + field.name
        # A part that is always there is only a place for its fields.
        if kind is not Kind.PART or may_be_off:
            yield Setting(
                name=name,
                kind=kind,
                may_be_off=may_be_off,
                choices=get_args(plain) if kind is Kind.CHOICE else (),
                default=None if field.default is MISSING else field.default,
            )
        if kind is Kind.PART:
            yield from settings_of(plain, f"{name}.")


def parts_of(options: type, inside: str = "") -> Iterator[tuple[str, type]]:
    """The name and the class of each part, and of the parts in it."""
    for field, hint in _hints(options):
        kind, _, plain = _read(hint)
        if kind is Kind.PART:
            name = inside + field.name
            yield name, plain
            yield from parts_of(plain, f"{name}.")


def arguments(options: type, given: Mapping[str, Any], inside: str = "") -> dict[str, Any]:
    """What was given of a class of options, as the arguments that make one."""
    found: dict[str, Any] = {}
    for field in fields(options):
        name = inside + field.name
        if name not in PARTS:
            if name in given:
                found[field.name] = given[name]
            continue
        inner = arguments(PARTS[name], given, f"{name}.")
        if given.get(name) is False:
            found[field.name] = None
        elif inner or given.get(name):
            found[field.name] = PARTS[name](**inner)
    return found


def _hints(options: type) -> Iterator[tuple[Field[Any], Any]]:
    hints = get_type_hints(options)
    return ((field, hints[field.name]) for field in fields(options))


def _read(hint: Any) -> tuple[Kind, bool, Any]:
    """Its kind, whether it may be None, and what it is otherwise."""
    if get_origin(hint) in (Union, UnionType):
        [plain] = [each for each in get_args(hint) if each is not NoneType]
        kind, _, plain = _read(plain)
        return kind, True, plain
    if get_origin(hint) is Literal:
        return Kind.CHOICE, False, hint
    if is_dataclass(hint):
        return Kind.PART, False, hint
    if hint not in KINDS:
        raise TypeError(f"no setting can be of the type {hint}: say in cli/catalogue.py how")
    return KINDS[hint], False, hint


ROOTS: tuple[type, ...] = (CommandOptions, WorkerOptions)
SETTINGS = {each.name: each for root in ROOTS for each in settings_of(root)}
PARTS = dict(part for root in ROOTS for part in parts_of(root))
