"""The crontab file, with one item per line: `* * * * * task ?options {payload}`."""

import json
import re
from contextlib import suppress
from datetime import timedelta
from typing import Any

from graphile_worker._payloads import encode
from graphile_worker.crontab.items import (
    ParsedCronItem,
    build_cron_spec,
    find_repeated_identifiers,
)
from graphile_worker.crontab.options import LINE_ENDS, read_options
from graphile_worker.crontab.patterns import FIELD_CHARACTERS, FIELDS, CronPattern, read_pattern
from graphile_worker.crontab.problems import Problems
from graphile_worker.errors import CrontabError, JobSpecError

# A larger file would take long to parse.
MAX_CRONTAB_BYTES = 64 * 1024

# The JSON5 parser takes up to 0.1 ms per character, a thousand times as long as the JSON parser.
MAX_JSON5_CHARS = 4096

# The space characters of JavaScript, as in Graphile Worker for Node.
WHITESPACE = (
    "\t\n\v\f\r \xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
)
WHITESPACE += "\u2028\u2029\u202f\u205f\u3000\ufeff"

WORD_PATTERN = re.compile(f"([^{WHITESPACE}]*)[{WHITESPACE}]*")
MAX_TASK_LENGTH = 128
TASK_PATTERN = re.compile(r"[_a-zA-Z][_a-zA-Z0-9:/-]*")


def parse_crontab(text: str, *, source: str = "crontab") -> list[ParsedCronItem]:
    """Parse a crontab.

    Args:
        text: The content of the file.
        source: The name of the file in error messages.

    Returns:
        The items, in the order of their lines.

    Raises:
        CrontabError: The crontab is invalid. The error lists all problems.
    """
    problems = Problems()
    if (size := len(text.encode(errors="replace"))) > MAX_CRONTAB_BYTES:
        problems.record(1, f"{size:,} bytes", f"at most {MAX_CRONTAB_BYTES:,} bytes")
        raise CrontabError(problems, source)
    items: dict[int, ParsedCronItem] = {}
    for number, line in enumerate(re.split(r"\r?\n", text), start=1):
        problems.line = number
        item = _read_line(line, problems)
        if item is not None:
            items[number] = item
    _check_identifiers(items, problems)
    if problems:
        raise CrontabError(problems, source)
    problems.log_warnings(source)
    return list(items.values())


def _check_identifiers(items: dict[int, ParsedCronItem], problems: Problems) -> None:
    repeated = set(find_repeated_identifiers(items.values()))
    for number, item in items.items():
        if item.identifier in repeated:
            problems.line = number
            problems.record(1, item.identifier, "a unique identifier: add ?id=…")
    problems.sort(key=lambda problem: problem.line)


class _LineScanner:
    """A reader of the words of a line. `column` is that of the next word, counted from 1."""

    def __init__(self, line: str) -> None:
        self._line = line.rstrip(WHITESPACE)
        self._position = len(self._line) - len(self._line.lstrip(WHITESPACE))

    @property
    def column(self) -> int:
        return self._position + 1

    @property
    def rest(self) -> str:
        return self._line[self._position :]

    def next_word(self) -> tuple[int, str]:
        """Return the column and the text of the next word, which is empty at the end."""
        column = self.column
        match = WORD_PATTERN.match(self._line, self._position)
        assert match is not None
        self._position = match.end()
        return column, match[1]


def _read_line(line: str, problems: Problems) -> ParsedCronItem | None:
    """Return the item of a line, or None for a comment, an empty line or a line with problems."""
    scanner = _LineScanner(line)
    if scanner.rest == "" or scanner.rest.startswith("#"):
        return None
    problem_count = len(problems)
    pattern = _read_fields(scanner, problems)
    if pattern is None:
        return None
    task = _read_task(scanner, problems)
    options = _read_options(scanner, problems)
    payload = _read_payload(scanner, problems)
    if len(problems) > problem_count:
        return None
    identifier, backfill = options.pop("id", task), options.pop("fill", timedelta(0))
    spec = build_cron_spec(task, payload, **options)
    return ParsedCronItem(identifier=identifier, match=pattern, spec=spec, backfill=backfill)


def _read_fields(scanner: _LineScanner, problems: Problems) -> CronPattern | None:
    fields = []
    for field in FIELDS:
        column, word = scanner.next_word()
        if word[:1] not in FIELD_CHARACTERS:
            problems.record(column, word, field.expected_form)
            return None
        fields.append((column, word))
    return read_pattern(fields, problems)


def _read_task(scanner: _LineScanner, problems: Problems) -> str:
    rest = scanner.rest
    column, task = scanner.next_word()
    if not LINE_ENDS.isdisjoint(rest):
        problems.record(column, task, "no line break after the five fields")
    if not TASK_PATTERN.fullmatch(task):
        problems.record(column, task, "a task: a letter or _, then letters, digits, :, /, - and _")
    elif len(task) > MAX_TASK_LENGTH:
        problems.record(column, task, f"a task of at most {MAX_TASK_LENGTH} letters")
    return task


def _read_options(scanner: _LineScanner, problems: Problems) -> dict[str, Any]:
    if not scanner.rest.startswith("?"):
        return {}
    column, text = scanner.next_word()
    if text == "?":
        problems.record(column, text, "options after ?, for example ?id=weekly")
    return read_options(column + 1, text[1:], problems)


def _read_payload(scanner: _LineScanner, problems: Problems) -> dict[str, Any] | None:
    text, column = scanner.rest, scanner.column
    if not text:
        return None
    if not (text.startswith("{") and text.endswith("}")):
        problems.record(
            column, scanner.next_word()[1], "?options, or a payload {…} at the end of the line"
        )
        return None
    try:
        payload = _load_payload(text)
        encode(payload)
    except _Json5TooLong:
        problems.record(
            column,
            f"{len(text):,} characters of JSON5",
            f"a payload of at most {MAX_JSON5_CHARS:,} characters in JSON5, or a longer one in "
            "JSON: quote its names, and leave out comments and trailing commas",
        )
    except JobSpecError as error:
        problems.record(column, "{…}", f"a payload that JSON can represent: {error.reason}")
    except RecursionError:
        problems.record(column, "{…}", "a payload with less nesting")
    except ValueError as error:
        position = re.search(r"at column ([0-9]+)", str(error))
        offset = int(position[1]) - 1 if position else 0
        problems.record(column + offset, text[offset : offset + 1], "a payload in JSON5")
    else:
        return payload
    return None


class _Json5TooLong(Exception):
    """A payload in JSON5 that would take too long to parse."""


def _load_payload(text: str) -> dict[str, Any]:
    with suppress(json.JSONDecodeError):
        plain: dict[str, Any] = json.loads(text)
        return plain
    if len(text) > MAX_JSON5_CHARS:
        raise _Json5TooLong
    # Imported on demand: the import is slow, and most crontabs do not need it.
    import json5

    # Through JSON, because json5 does not join the two escapes of a surrogate pair.
    loaded: dict[str, Any] = json.loads(json.dumps(json5.loads(text)))
    return loaded
