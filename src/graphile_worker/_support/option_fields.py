"""Declare the fields of option classes, and check their values.

The declaration of a field holds its default, its limits and its help. The flags of the command, the
environment variables, the keys of the config file and the reference are made from it.
"""

from collections.abc import Callable, Sequence
from dataclasses import field, fields, is_dataclass
from datetime import timedelta
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from graphile_worker._support.lazy_dataclass import LazyKeywordDataclass
from graphile_worker.errors import ConfigurationError

T = TypeVar("T")


class HelpGroup(StrEnum):
    """A heading of `--help` and of the reference, in this order."""

    COMMON = "Common"
    CONCURRENCY = "Concurrency"
    SHUTDOWN = "Shutdown"
    RECOVERY = "Recovery"
    ADVANCED = "Advanced"


class OptionField(LazyKeywordDataclass):
    """One option. `help` has neither its default nor a period: the command and pages add both."""

    default: Any
    help: str
    default_text: str = ""  # the default in words, where the value does not show it
    detail: str = ""  # further sentences, in Markdown, for the reference
    none_means: str = ""  # what None in Python and "off" elsewhere mean
    see: str = ""  # a page below docs, with an anchor
    help_group: HelpGroup | None = None  # if not that of the option around it
    minimum: Any = None
    flags: tuple[str, ...] = ()  # if not the name of the option with hyphens
    variable: str = ""  # if not GRAPHILE_WORKER_ and the name of the option
    metavar: str = ""
    is_secret: bool = False


def option(default: T, *, factory: Callable[[], T] | None = None, **declared: Any) -> T:
    """Declare an option. A `factory` computes the default when an object is created."""
    metadata = {"option": OptionField(default=default, **declared)}
    if factory is not None:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


def split_optional(annotation: Any) -> tuple[Any, bool]:
    """Return the type without None, and whether None is allowed."""
    if get_origin(annotation) not in (Union, UnionType):
        return annotation, False
    [plain] = [each for each in get_args(annotation) if each is not NoneType]
    return plain, True


def check_fields(options: Any) -> None:
    """Raise ConfigurationError if a value does not have the type or the minimum of its field."""
    for each in fields(options):
        value = getattr(options, each.name)
        kind, can_be_none = split_optional(each.type)
        if value is not None or not can_be_none:
            minimum = each.metadata["option"].minimum
            if problem := _find_problem(value, kind, minimum, or_none=can_be_none):
                raise ConfigurationError(f"{each.name} must be {problem}")


def _find_problem(value: Any, kind: Any, minimum: Any, *, or_none: bool) -> str | None:
    if kind is timedelta:
        return _find_duration_problem(value, minimum or timedelta(0))
    if kind is int:
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        if not is_integer or value < minimum:
            return f"an integer from {minimum}, got {value!r}"
    if kind == Sequence[str] and not _is_list_of_text(value):
        return f"a list of text, got {value!r}"
    if get_origin(kind) is Literal and value not in get_args(kind):
        return f"one of {', '.join(get_args(kind))}, got {value!r}"
    if isinstance(kind, type) and is_dataclass(kind) and not isinstance(value, kind):
        return f"{kind.__name__}{' or None' if or_none else ''}, got {value!r}"
    return None


def _is_list_of_text(value: Any) -> bool:
    # A str is a sequence of its characters.
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    return is_list and all(isinstance(each, str) for each in value)


def _find_duration_problem(value: Any, minimum: timedelta) -> str | None:
    if not isinstance(value, timedelta):
        hint = f". Write timedelta(milliseconds={value})." if isinstance(value, int | float) else ""
        return f"a timedelta, got {value!r}{hint}"
    return f"at least {minimum}, got {value}" if value < minimum else None
