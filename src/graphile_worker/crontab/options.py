"""Options of a crontab line: `?id=…&fill=…`, as in the query of a URL."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import unquote_plus

from graphile_worker.crontab.problems import Problems
from graphile_worker.errors import JobSpecError
from graphile_worker.jobs import JobSpec

# What ends a line for the reference.
LINE_ENDS = frozenset("\n\r\u2028\u2029")

# An index of PostgreSQL holds no more than 2,700 bytes of one.
MAX_IDENTIFIER_BYTES = 2000

PERIOD_UNITS = {
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}


def read_period(text: str) -> timedelta:
    """A time phrase: `4w3d2h1m` is 44,761 minutes. ValueError if it is none."""
    if not re.fullmatch(r"(?:[0-9]+[smhdw])+", text):
        raise ValueError(text)
    parts = re.findall(r"([0-9]+)([smhdw])", text)
    return sum((int(count) * PERIOD_UNITS[unit] for count, unit in parts), timedelta(0))


def _build_word_reader(pattern: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(text)
        return text

    return read


def _build_number_reader(pattern: str) -> Callable[[str], int]:
    word = _build_word_reader(pattern)
    return lambda text: int(word(text))


def _read_job_key(text: str) -> str:
    if not LINE_ENDS.isdisjoint(text):
        raise ValueError(text)
    return text


@dataclass(frozen=True, slots=True)
class CrontabOption:
    """Its name in code, what it may be, and how it is read: ValueError if it is something else."""

    name: str
    expected: str
    read: Callable[[str], Any]


OPTIONS = {
    "id": CrontabOption(
        "id",
        f"a letter or _, then letters, digits, - and _, at most {MAX_IDENTIFIER_BYTES} in all",
        _build_word_reader(rf"[_a-zA-Z][-_a-zA-Z0-9]{{0,{MAX_IDENTIFIER_BYTES - 1}}}"),
    ),
    "fill": CrontabOption("fill", "numbers with s, m, h, d or w, such as 2d12h", read_period),
    "max": CrontabOption("max_attempts", "a number from 1", _build_number_reader(r"[0-9]+")),
    "queue": CrontabOption(
        "queue_name", "letters, digits, -, _ and :", _build_word_reader(r"[-a-zA-Z0-9_:]+")
    ),
    "jobKey": CrontabOption("job_key", "text without line breaks", _read_job_key),
    "jobKeyMode": CrontabOption(
        "job_key_mode", "replace or preserve_run_at", _build_word_reader("replace|preserve_run_at")
    ),
    "priority": CrontabOption("priority", "a number", _build_number_reader(r"-?[0-9]+")),
}


def read_options(column: int, text: str, problems: Problems) -> dict[str, Any]:
    """The options by their names in code; what is wrong with them goes to `problems`."""
    found: dict[str, Any] = {}
    for pair in text.split("&"):
        if pair:
            _read_pair(column, pair, found, problems)
        column += len(pair) + 1
    return found


def _read_pair(column: int, pair: str, found: dict[str, Any], problems: Problems) -> None:
    key, _, value = (unquote_plus(part, errors="replace") for part in pair.partition("="))
    option = OPTIONS.get(key)
    if option is None:
        problems.record(column, key, f"one of {', '.join(OPTIONS)}")
    elif option.name in found:
        problems.record(column, pair, f"{key} only once")
    else:
        found[option.name] = None
        try:
            found[option.name] = _read_value(option, value)
        except JobSpecError as error:
            problems.record(column, pair, f"for {key} another value: {error.reason}")
        except (ValueError, OverflowError):
            problems.record(column, pair, f"for {key} {option.expected}")


def _read_value(option: CrontabOption, text: str) -> Any:
    value = option.read(text)
    if option.name not in ("id", "fill"):
        JobSpec("any", **{option.name: value})
    return value
