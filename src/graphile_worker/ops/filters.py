"""Which jobs are meant: `task:render_pdf state:failed error:timeout age:>10m`, read and written.

A filter is terms with blanks between them, and a job must fulfil them all. A term is a field, a
colon and values with commas between them, of which one must fit; a `-` before it turns it around.
A bare word is an id, or part of a task's name, a key or an error. `"…"` holds blanks and commas, a
backslash takes its meaning from any character, `*` stands for anything in a name.

This is words only. `ops/search.py` looks for the jobs.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from graphile_worker._support.durations import format_exact_duration, parse_duration
from graphile_worker.errors import FilterError
from graphile_worker.ops.states import STATE_ALIASES, JobState, parse_states

MAX_BIGINT = 2**63 - 1
MAX_DURATION = timedelta(days=36_500)
ONE_DAY = timedelta(days=1)
TIME_RESOLUTION = timedelta(microseconds=1)

INTEGER_PATTERN = re.compile(r"-?[0-9]{1,19}")
COMPARISON_PATTERN = re.compile(r"(>=|<=|>|<|=)?(.*)", re.DOTALL)
DATE_PATTERN = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
TIMESTAMP_PATTERN = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}.*")
# What JSON calls a number, and jsonb can hold.
JSON_NUMBER_PATTERN = re.compile(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?")
JSON_LITERALS = ("true", "false", "null")

NEEDS_QUOTES_PATTERN = re.compile(r"[\s,\"\\]")
DIGITS_PATTERN = re.compile(r"[0-9]+")
FIELD_NAME_PATTERN = re.compile(r"[A-Za-z_]+(?=[:.])")


class FilterField(StrEnum):
    """What a term is about; a bare word, that is not an id, is about `TEXT`."""

    TASK = "task"
    QUEUE = "queue"
    STATE = "state"
    ID = "id"
    KEY = "key"
    WORKER = "worker"
    ERROR = "error"
    ATTEMPTS = "attempts"
    PRIORITY = "priority"
    AGE = "age"
    RUN = "run"
    CREATED = "created"
    FLAG = "flag"
    PAYLOAD = "payload"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class TextPattern:
    """A text, or a pattern: whatever stands between two parts."""

    parts: tuple[str, ...]

    @property
    def exact(self) -> str | None:
        return self.parts[0] if len(self.parts) == 1 else None

    @property
    def like_pattern(self) -> str:
        """As PostgreSQL's LIKE takes it."""
        return "%".join(re.sub(r"([\\%_])", r"\\\1", part) for part in self.parts)

    def __str__(self) -> str:
        return "*".join(_escape(part) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Absent:
    """The job has none."""

    def __str__(self) -> str:
        return "none"


@dataclass(frozen=True, slots=True)
class JsonValue:
    """A plain value in a payload, as JSON."""

    text: str

    @property
    def string(self) -> str | None:
        """The text that it is, if it is one."""
        return str(json.loads(self.text)) if self.text.startswith('"') else None

    def __str__(self) -> str:
        return self.text if self.string is None else f'"{_escape(self.string)}"'


# A moment, as such or from now on; or a number.
Bound = int | datetime | timedelta


@dataclass(frozen=True, slots=True)
class Range:
    """From here to there, both included; None is as far as it goes."""

    low: Bound | None
    high: Bound | None

    def __str__(self) -> str:
        if self.low == self.high:
            return _format_bound(self.low)
        if self.high is None:
            return f">={_format_bound(self.low)}"
        if self.low is None:
            return f"<={_format_bound(self.high)}"
        return f"{_format_bound(self.low)}..{_format_bound(self.high)}"


FilterValue = TextPattern | Absent | JsonValue | Range | JobState


@dataclass(frozen=True, slots=True)
class Term:
    """One of the values must fit, or none may; in a payload, what `path` leads to."""

    field: FilterField
    values: tuple[FilterValue, ...]
    is_negated: bool = False
    path: tuple[str, ...] = ()

    def __str__(self) -> str:
        values = ",".join(_format_value(self.field, value) for value in self.values)
        return f"{'-' * self.is_negated}{_format_field(self)}{values}"


@dataclass(frozen=True, slots=True)
class Filter:
    """All terms must hold; without any, every job is meant."""

    terms: tuple[Term, ...] = ()

    def __str__(self) -> str:
        return " ".join(map(str, self.terms))

    def __and__(self, other: "Filter") -> "Filter":
        return Filter(self.terms + other.terms)


def parse_filter(text: str) -> Filter:
    """The filter that a text says, or FilterError: where, and what may stand there."""
    reader = _Scanner(text)
    terms = []
    while reader.advance_to_term():
        terms.append(_read_term(reader))
    return Filter(tuple(terms))


def filter_by_ids(ids: Iterable[int]) -> Filter:
    """Just these jobs."""
    return Filter((Term(FilterField.ID, tuple(Range(each, each) for each in ids)),))


def filter_by_keys(keys: Iterable[str]) -> Filter:
    """The jobs with these keys, taken literally."""
    return Filter((Term(FilterField.KEY, tuple(TextPattern((key,)) for key in keys)),))


def filter_by_states(*states: JobState) -> Filter:
    return Filter((Term(FilterField.STATE, states),))


# Reading


@dataclass(frozen=True, slots=True)
class _Token:
    """A value as it was written: between its parts there were stars."""

    parts: tuple[str, ...]
    is_quoted: bool
    column: int

    @property
    def text(self) -> str:
        return "*".join(self.parts)

    @property
    def unquoted_text(self) -> str | None:
        """The text, if it may be more than just words."""
        return None if self.is_quoted else self.text

    def build_error(self, expected: str) -> FilterError:
        return FilterError(self.column, expected, self.text)


class _Scanner:
    """A place in a text that moves on."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        for place, letter in enumerate(text):
            if letter == "\x00" or "\ud800" <= letter <= "\udfff":
                raise FilterError(place + 1, "text that PostgreSQL can hold", letter)

    @property
    def column(self) -> int:
        return self._position + 1

    @property
    def remaining(self) -> str:
        return self._text[self._position :]

    def advance_to_term(self) -> bool:
        """Is there another term? Goes to its beginning."""
        while self._position < len(self._text) and self._text[self._position].isspace():
            self._position += 1
        return self._position < len(self._text)

    def accept(self, letter: str) -> bool:
        found = self._text.startswith(letter, self._position)
        self._position += len(letter) * found
        return found

    def read_field_name(self) -> str | None:
        """The name of a field, if a colon or a path comes after it."""
        found = FIELD_NAME_PATTERN.match(self._text, self._position)
        if found is None:
            return None
        self._position = found.end()
        return found[0]

    def read_token(self, ends: str = ",") -> _Token:
        """What stands up to a blank, the end or one of these letters, or between quotes."""
        column = self.column
        is_quoted = self.accept('"')
        parts, current = [], ""
        while not self._is_at_end(ends, is_quoted):
            letter = self._read_char()
            if letter == "*":
                parts.append(current)
                current = ""
            else:
                current += self._read_escaped_char() if letter == "\\" else letter
        if is_quoted:
            self._expect_closing_quote(column, ends)
        return _Token((*parts, current), is_quoted, column)

    def _is_at_end(self, ends: str, is_quoted: bool) -> bool:
        if self._position == len(self._text):
            return True
        letter = self._text[self._position]
        return letter == '"' if is_quoted else letter.isspace() or letter in ends

    def _read_char(self) -> str:
        self._position += 1
        return self._text[self._position - 1]

    def _read_escaped_char(self) -> str:
        if self._position == len(self._text):
            raise FilterError(self.column, "something after the backslash", "")
        return self._read_char()

    def _expect_closing_quote(self, column: int, ends: str) -> None:
        if not self.accept('"'):
            raise FilterError(column, 'a " at the end', self._text[column - 1 :])
        if not self._is_at_end(ends, is_quoted=False):
            raise FilterError(self.column, "a blank or a comma", self.remaining)


def _read_term(reader: _Scanner) -> Term:
    is_negated = reader.accept("-")
    column, before = reader.column, reader.remaining
    name = reader.read_field_name()
    if name is None:
        return _read_bare_term(reader, is_negated)
    if name not in FIELD_PARSERS:
        known = ", ".join(FIELD_PARSERS)
        raise FilterError(column, f"one of {known}, or the text in quotes", before.split()[0])
    field = FilterField(name)
    path = _read_path(reader) if field is FilterField.PAYLOAD else ()
    if not reader.accept(":"):
        raise FilterError(reader.column, f"a colon after {name}", reader.remaining)
    values = [value for word in _read_tokens(reader) for value in FIELD_PARSERS[name](word)]
    return Term(field, tuple(dict.fromkeys(values)), is_negated, path)


def _read_bare_term(reader: _Scanner, is_negated: bool) -> Term:
    words = list(_read_tokens(reader))
    if all(DIGITS_PATTERN.fullmatch(word.unquoted_text or "") for word in words):
        ids = [value for word in words for value in _parse_integer_range(word)]
        return Term(FilterField.ID, tuple(dict.fromkeys(ids)), is_negated)
    texts = [value for word in words for value in _parse_pattern(word)]
    return Term(FilterField.TEXT, tuple(dict.fromkeys(texts)), is_negated)


def _read_tokens(reader: _Scanner) -> Iterator[_Token]:
    while True:
        word = reader.read_token()
        if word.text == "" and not word.is_quoted:
            raise word.build_error("a value")
        yield word
        if not reader.accept(","):
            return


def _read_path(reader: _Scanner) -> tuple[str, ...]:
    path = []
    while reader.accept("."):
        word = reader.read_token(".:,")
        if word.text == "" and not word.is_quoted:
            raise word.build_error("a key of the payload")
        path.append(word.text)
    if not path:
        raise FilterError(reader.column, "a key, as in payload.user.id:42", reader.remaining)
    return tuple(path)


def _parse_pattern(token: _Token) -> Iterator[FilterValue]:
    if token.parts == ("",):
        raise token.build_error("a text")
    yield TextPattern(token.parts)


def _parse_pattern_or_none(token: _Token) -> Iterator[FilterValue]:
    if token.unquoted_text == "none":
        yield Absent()
    else:
        yield from _parse_pattern(token)


def _parse_literal(token: _Token) -> Iterator[FilterValue]:
    yield from _parse_pattern(_Token((token.text,), token.is_quoted, token.column))


def _parse_states(token: _Token) -> Iterator[FilterValue]:
    found = parse_states(token.text)
    if not found:
        raise token.build_error(f"one of {', '.join((*JobState, *STATE_ALIASES))}")
    yield from found


def _parse_integer_range(token: _Token) -> Iterator[FilterValue]:
    yield _parse_range(token, "a number, or a range such as >=5 or 3..7", _parse_integer, step=1)


def _parse_duration_range(token: _Token) -> Iterator[FilterValue]:
    expected = "a time with < or > before it, such as >10m or <1h30m"
    found = _parse_range(token, expected, _parse_duration, step=None)
    if found.low == found.high:
        raise token.build_error(expected)
    yield found


def _parse_time_range(token: _Token) -> Iterator[FilterValue]:
    if DATE_PATTERN.fullmatch(token.text) and isinstance(day := _parse_time(token.text), datetime):
        yield Range(day, _get_end_of_day(day))
        return
    expected = "a date such as 2026-08-01, or < or > and a moment: >2026-08-01T10:00Z, <1h, >-10m"
    found = _parse_range(token, expected, _parse_time, step=None)
    if _ends_on_date(token.text) and isinstance(found.high, datetime):
        found = Range(found.low, _get_end_of_day(found.high))
    if found.low == found.high:
        raise token.build_error(expected)
    yield found


def _ends_on_date(text: str) -> bool:
    """Does it go on up to a day, and that one is meant too?"""
    return (".." in text or text.startswith("<=")) and bool(DATE_PATTERN.fullmatch(text[-10:]))


def _parse_json(token: _Token) -> Iterator[FilterValue]:
    """What is not in quotes may be meant as a number and so on, or as a text."""
    text = token.unquoted_text
    if text is not None and (text in JSON_LITERALS or JSON_NUMBER_PATTERN.fullmatch(text)):
        yield JsonValue(text)
    yield JsonValue(json.dumps(token.text, ensure_ascii=False))


def _parse_range(
    token: _Token, expected: str, read: Callable[[str], Bound | None], step: int | None
) -> Range:
    def bound(text: str) -> Bound:
        found = read(text)
        if found is None:
            raise token.build_error(expected)
        return found

    first, dots, last = token.text.partition("..")
    if dots:
        if not first and not last:
            raise token.build_error(expected)
        return Range(bound(first) if first else None, bound(last) if last else None)
    matched = COMPARISON_PATTERN.fullmatch(token.text)
    assert matched is not None
    sign, value = matched[1], bound(matched[2])
    return _build_range(sign, value, step)


def _build_range(sign: str | None, value: Bound, step: int | None) -> Range:
    """Whole numbers have a next one; of times nobody asks for a microsecond more or less."""
    beside = step if isinstance(value, int) and step is not None and sign in ("<", ">") else 0
    match sign:
        case ">" | ">=":
            return Range(value + beside if isinstance(value, int) else value, None)
        case "<" | "<=":
            return Range(None, value - beside if isinstance(value, int) else value)
        case _:
            return Range(value, value)


def _parse_integer(text: str) -> int | None:
    if not INTEGER_PATTERN.fullmatch(text) or abs(int(text)) > MAX_BIGINT:
        return None
    return int(text)


def _parse_duration(text: str) -> timedelta | None:
    negated = text.startswith("-")
    span = parse_duration(text.removeprefix("-"))
    if span is None or span > MAX_DURATION:
        return None
    return -span if negated else span


def _parse_time(text: str) -> datetime | timedelta | None:
    if not DATE_PATTERN.fullmatch(text) and not TIMESTAMP_PATTERN.fullmatch(text):
        return _parse_duration(text)
    try:
        found = datetime.fromisoformat(text)
        aware = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
        return aware.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _get_end_of_day(day: datetime) -> datetime:
    try:
        return day + ONE_DAY - TIME_RESOLUTION
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


ValueParser = Callable[[_Token], Iterator[FilterValue]]

FIELD_PARSERS: Mapping[str, ValueParser] = {
    FilterField.TASK: _parse_pattern,
    FilterField.QUEUE: _parse_pattern_or_none,
    FilterField.STATE: _parse_states,
    FilterField.ID: _parse_integer_range,
    FilterField.KEY: _parse_pattern_or_none,
    FilterField.WORKER: _parse_pattern,
    FilterField.ERROR: _parse_pattern,
    FilterField.ATTEMPTS: _parse_integer_range,
    FilterField.PRIORITY: _parse_integer_range,
    FilterField.AGE: _parse_duration_range,
    FilterField.RUN: _parse_time_range,
    FilterField.CREATED: _parse_time_range,
    FilterField.FLAG: _parse_literal,
    FilterField.PAYLOAD: _parse_json,
}


# Writing


def _format_field(term: Term) -> str:
    match term.field:
        case FilterField.TEXT:
            return ""
        case FilterField.PAYLOAD:
            return f"payload.{'.'.join(map(_format_key, term.path))}:"
        case _:
            return f"{term.field}:"


def _format_value(field: FilterField, value: FilterValue) -> str:
    text = str(value)
    if not isinstance(value, TextPattern):
        return text
    # Quotes, where it would be read as something else.
    is_special = text == "none" or field is FilterField.TEXT or NEEDS_QUOTES_PATTERN.search(text)
    return f'"{text}"' if is_special else text


def _format_key(key: str) -> str:
    return f'"{_escape(key)}"'


def _format_bound(bound: Bound | None) -> str:
    match bound:
        case datetime():
            return bound.isoformat()
        case timedelta():
            return format_exact_duration(bound)
        case _:
            return str(bound)


def _escape(text: str) -> str:
    return re.sub(r'(["\\*])', r"\\\1", text)
