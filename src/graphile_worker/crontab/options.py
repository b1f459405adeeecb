"""Options of a crontab line, in the format of a URL query: `?id=…&fill=…`."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import unquote_plus

from graphile_worker._support.lazy_dataclass import LazyDataclass
from graphile_worker.crontab.problems import Problems
from graphile_worker.errors import JobSpecError
from graphile_worker.jobs import JobSpec

# The line ends of JavaScript, as in Graphile Worker for Node.
LINE_ENDS = frozenset("\n\r\u2028\u2029")

# An index entry of PostgreSQL has at most 2,700 bytes.
MAX_IDENTIFIER_BYTES = 2000

PERIOD_UNITS = {
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}


def read_period(text: str) -> timedelta:
    """Parse a period, for example `4w3d2h1m`. Raise ValueError if it is invalid."""
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


class CrontabOption(LazyDataclass):
    """An option: its name in code, the expected value, and a parser that raises ValueError."""

    name: str
    expected: str
    read: Callable[[str], Any]


OPTIONS = {
    "id": CrontabOption(
        "id",
        f"a letter or _, then letters, digits, - and _, at most {MAX_IDENTIFIER_BYTES} in all",
        _build_word_reader(rf"[_a-zA-Z][-_a-zA-Z0-9]{{0,{MAX_IDENTIFIER_BYTES - 1}}}"),
    ),
    "fill": CrontabOption("fill", "numbers with s, m, h, d or w, for example 2d12h", read_period),
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
    """Return the options by their names in code, and record problems."""
    options: dict[str, Any] = {}
    for pair in text.split("&"):
        if pair:
            _read_pair(column, pair, options, problems)
        column += len(pair) + 1
    return options


def _read_pair(column: int, pair: str, options: dict[str, Any], problems: Problems) -> None:
    key, _, value = (unquote_plus(part, errors="replace") for part in pair.partition("="))
    option = OPTIONS.get(key)
    if option is None:
        problems.record(column, key, f"one of {', '.join(OPTIONS)}")
    elif option.name in options:
        problems.record(column, pair, f"{key} only once")
    else:
        options[option.name] = None
        try:
            options[option.name] = _read_value(option, value)
        except JobSpecError as error:
            problems.record(column, pair, f"another value for {key}: {error.reason}")
        except (ValueError, OverflowError):
            problems.record(column, pair, f"for {key} {option.expected}")


def _read_value(option: CrontabOption, text: str) -> Any:
    value = option.read(text)
    if option.name not in ("id", "fill"):
        JobSpec("any", **{option.name: value})
    return value
