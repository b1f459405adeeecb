"""Filters choose jobs: `task:render_pdf state:failed error:timeout age:>10m`.

A filter is a list of terms with spaces between them, and a job must match every term. A term is a
field, a colon, and values with commas between them, of which a job must match one. A `-` before a
term negates it. A bare word is an id, or a part of a task name, a job key or an error. Quotes
enclose spaces and commas, a backslash escapes a character, and `*` matches any text in a name.

Filters of ended jobs have the same syntax and fewer fields: see `parse_ended_filter`.

This module only reads and writes filters. `graphile_worker.ops.search` finds the jobs, and
`graphile_worker.ops.history` those that ended.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from graphile_worker._support.durations import format_exact_duration, parse_duration
from graphile_worker.errors import FilterError
from graphile_worker.ops._filter_syntax import Scanner, Token
from graphile_worker.ops.states import STATE_ALIASES, JobState, parse_states
from graphile_worker.results import JobStatusState

MAX_BIGINT = 2**63 - 1
MAX_DURATION = timedelta(days=36_500)
ONE_DAY = timedelta(days=1)
TIME_RESOLUTION = timedelta(microseconds=1)

INTEGER_PATTERN = re.compile(r"-?[0-9]{1,19}")
COMPARISON_PATTERN = re.compile(r"(>=|<=|>|<|=|)(.*)", re.DOTALL)
DATE_PATTERN = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
TIMESTAMP_PATTERN = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}.*")
# A number of JSON that jsonb can store.
JSON_NUMBER_PATTERN = re.compile(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?")
JSON_LITERALS = ("true", "false", "null")

NEEDS_QUOTES_PATTERN = re.compile(r"[\s,\"\\]")
DIGITS_PATTERN = re.compile(r"[0-9]+")

INTEGER_EXPECTED = "a number, or a range such as >=5 or 3..7"
DURATION_EXPECTED = "a duration with < or > before it, such as >10m or <1h30m"
TIME_EXPECTED = "a date such as 2026-08-01, or < or > with a time: >2026-08-01T10:00Z, <1h, >-10m"
FINISHED_EXPECTED = "a date such as 2026-08-01, or < or >: >2026-08-01T10:00Z, <1h, 1h..2h"

ENDED_ID_EXPECTED = "an id, or a range of at most 10,000 ids such as 3..7"

# The states of ended jobs.
ENDED_STATES = (JobStatusState.SUCCEEDED, JobStatusState.FAILED)

# Ended jobs are sorted by time, so a list reads all outcomes of a range of ids.
MAX_ENDED_IDS = 10_000


class FilterField(StrEnum):
    """The property of a job that a term checks.

    Bare words other than ids check `TEXT`: the task, the job key and the error. `NAME` is the same
    without the error, see `without_errors`.
    """

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
    FINISHED = "finished"
    FLAG = "flag"
    PAYLOAD = "payload"
    TEXT = "text"
    NAME = "name"


# The fields of bare words.
BARE_FIELDS = (FilterField.TEXT, FilterField.NAME)


@dataclass(frozen=True, slots=True)
class TextPattern:
    """A text, or a pattern with any text between its parts."""

    parts: tuple[str, ...]

    @property
    def exact(self) -> str | None:
        """The text, or None for a pattern."""
        return self.parts[0] if len(self.parts) == 1 else None

    @property
    def like_pattern(self) -> str:
        """The pattern in the syntax of SQL's LIKE."""
        return "%".join(re.sub(r"([\\%_])", r"\\\1", part) for part in self.parts)

    def __str__(self) -> str:
        return "*".join(_escape(part) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Absent:
    """Matches jobs without a value in this field."""

    def __str__(self) -> str:
        return "none"


@dataclass(frozen=True, slots=True)
class JsonValue:
    """A string, number, boolean or null in a payload, as JSON."""

    text: str

    @property
    def string(self) -> str | None:
        """The string, or None for other values."""
        return str(json.loads(self.text)) if self.text.startswith('"') else None

    def __str__(self) -> str:
        return self.text if self.string is None else f'"{_escape(self.string)}"'


# A number, a point in time, or a duration from now.
Bound = int | datetime | timedelta


@dataclass(frozen=True, slots=True)
class Range:
    """A range that includes both bounds. None leaves a side open."""

    low: Bound | None
    high: Bound | None

    def __str__(self) -> str:
        low, high = _format_bound(self.low), _format_bound(self.high)
        if self.low == self.high:
            return low
        if self.high is None:
            return f">={low}"
        return f"<={high}" if self.low is None else f"{low}..{high}"


FilterValue = TextPattern | Absent | JsonValue | Range | JobState | JobStatusState


@dataclass(frozen=True, slots=True)
class Term:
    """A field and its values, of which one must match. `path` leads to a value of the payload."""

    field: FilterField
    values: tuple[FilterValue, ...]
    is_negated: bool = False
    path: tuple[str, ...] = ()

    def __str__(self) -> str:
        values = ",".join(_format_value(self.field, value) for value in self.values)
        path = "".join(f'."{_escape(key)}"' for key in self.path)
        field = "" if self.field in BARE_FIELDS else f"{self.field}{path}:"
        return f"{'-' * self.is_negated}{field}{values}"


@dataclass(frozen=True, slots=True)
class Filter:
    """Terms that a job must all match. A filter without terms matches every job."""

    terms: tuple[Term, ...] = ()

    def __str__(self) -> str:
        return " ".join(map(str, self.terms))

    def __and__(self, other: "Filter") -> "Filter":
        return Filter(self.terms + other.terms)


def parse_filter(text: str) -> Filter:
    """Parse a filter.

    Args:
        text: The filter as a user writes it.

    Returns:
        The filter. `str()` turns it into text again.

    Raises:
        FilterError: The text is not a filter. The error has the column and what is expected there.
    """
    return _parse(text, VALUE_PARSERS)


def parse_ended_filter(text: str) -> Filter:
    """Parse a filter of ended jobs, which has the fields task, state, id, finished and error.

    Args:
        text: The filter as a user writes it. A duration after `finished:` is the time since the
            job ended: `finished:<1h` is the last hour.

    Returns:
        The filter. `str()` turns it into text again.

    Raises:
        FilterError: The text is not a filter, or a term has no meaning for ended jobs.
    """
    return _parse(text, ENDED_VALUE_PARSERS)


def check_ended_filter(job_filter: Filter) -> None:
    """Check that each term of a filter has a meaning for ended jobs.

    Args:
        job_filter: The filter.

    Raises:
        FilterError: A term has none.
    """
    for position, term in enumerate(job_filter.terms):
        if not _is_ended_term(term):
            column = len(str(Filter(job_filter.terms[:position]))) + 1 + bool(position)
            is_id = term.field is FilterField.ID
            expected = ENDED_ID_EXPECTED if is_id else ENDED_FIELDS_EXPECTED
            raise FilterError(column, expected, str(term))


def _is_ended_term(term: Term) -> bool:
    match term.field:
        case FilterField.STATE:
            return all(str(value) in ENDED_STATES for value in term.values)
        case FilterField.ID:
            return all(_is_short(value) for value in term.values)
        case FilterField.TEXT | FilterField.NAME:
            return True
        case field:
            return field in ENDED_VALUE_PARSERS


def _is_short(value: FilterValue) -> bool:
    if not isinstance(value, Range):
        return False
    low, high = value.low, value.high
    return isinstance(low, int) and isinstance(high, int) and high - low < MAX_ENDED_IDS


def filter_by_ids(ids: Iterable[int]) -> Filter:
    """Choose jobs by their ids.

    Args:
        ids: At least one id.

    Returns:
        A filter that matches these jobs.
    """
    return Filter((Term(FilterField.ID, tuple(Range(each, each) for each in ids)),))


def filter_by_keys(keys: Iterable[str]) -> Filter:
    """Choose jobs by their job keys.

    Args:
        keys: At least one job key; a `*` in it is not a wildcard.

    Returns:
        A filter that matches the jobs with these keys.
    """
    return Filter((Term(FilterField.KEY, tuple(TextPattern((key,)) for key in keys)),))


def filter_by_states(*states: JobState) -> Filter:
    """Choose jobs by their states.

    Args:
        states: At least one state.

    Returns:
        A filter that matches the jobs in these states.
    """
    return Filter((Term(FilterField.STATE, states),))


def without_errors(job_filter: Filter) -> Filter:
    """Search for bare words in names only, for users who may not view errors.

    Args:
        job_filter: The filter.

    Returns:
        The filter, with bare words that match tasks and job keys but not errors.
    """
    return Filter(
        tuple(
            replace(term, field=FilterField.NAME) if term.field is FilterField.TEXT else term
            for term in job_filter.terms
        )
    )


# Reading


def _parse(text: str, parsers: "Mapping[str, ValueParser]") -> Filter:
    scanner = Scanner(text)
    terms = []
    while scanner.advance_to_term():
        terms.append(_read_term(scanner, parsers))
    return Filter(tuple(terms))


def _read_term(scanner: Scanner, parsers: "Mapping[str, ValueParser]") -> Term:
    is_negated = scanner.accept("-")
    column, before = scanner.column, scanner.remaining
    name = scanner.read_field_name()
    if name is None:
        return _read_bare_term(scanner, is_negated)
    if name not in parsers:
        raise FilterError(column, _describe_fields(parsers), before.split()[0])
    field = FilterField(name)
    path = scanner.read_path() if field is FilterField.PAYLOAD else ()
    if not scanner.accept(":"):
        raise FilterError(scanner.column, f"a colon after {name}", scanner.remaining)
    return Term(field, _parse_values(scanner.read_tokens(), parsers[field]), is_negated, path)


def _describe_fields(parsers: "Mapping[str, ValueParser]") -> str:
    kind = " for ended jobs" if parsers is ENDED_VALUE_PARSERS else ""
    return f"one of {', '.join(parsers)}{kind}, or the text in quotes"


def _read_bare_term(scanner: Scanner, is_negated: bool) -> Term:
    tokens = list(scanner.read_tokens())
    if all(DIGITS_PATTERN.fullmatch(token.unquoted_text or "") for token in tokens):
        return Term(FilterField.ID, _parse_values(tokens, _parse_integer_range), is_negated)
    return Term(FilterField.TEXT, _parse_values(tokens, _parse_pattern), is_negated)


ValueParser = Callable[[Token], Iterable[FilterValue]]


def _parse_values(tokens: Iterable[Token], parse: ValueParser) -> tuple[FilterValue, ...]:
    return tuple(dict.fromkeys(value for token in tokens for value in parse(token)))


def _parse_pattern(token: Token) -> Iterator[FilterValue]:
    if token.parts == ("",):
        raise token.build_error("a text")
    yield TextPattern(token.parts)


def _parse_pattern_or_none(token: Token) -> Iterator[FilterValue]:
    if token.unquoted_text == "none":
        yield Absent()
    else:
        yield from _parse_pattern(token)


def _parse_literal(token: Token) -> Iterator[FilterValue]:
    return _parse_pattern(Token((token.text,), token.is_quoted, token.column))


def _parse_states(token: Token) -> tuple[JobState, ...]:
    states = parse_states(token.text)
    if not states:
        raise token.build_error(f"one of {', '.join((*JobState, *STATE_ALIASES))}")
    return states


def _parse_ended_states(token: Token) -> tuple[JobStatusState, ...]:
    name = "failed" if parse_states(token.text) == (JobState.FAILED,) else token.text
    if name not in ENDED_STATES:
        raise token.build_error("succeeded or failed")
    return (JobStatusState(name),)


def _parse_json(token: Token) -> Iterator[FilterValue]:
    """Parse a value of a payload. An unquoted number or literal also matches as a string."""
    text = token.unquoted_text
    if text is not None and (text in JSON_LITERALS or JSON_NUMBER_PATTERN.fullmatch(text)):
        yield JsonValue(text)
    yield JsonValue(json.dumps(token.text, ensure_ascii=False))


def _parse_integer_range(token: Token) -> Iterator[FilterValue]:
    yield _parse_range(token, INTEGER_EXPECTED, _parse_integer)


def _parse_ended_ids(token: Token) -> Iterator[FilterValue]:
    for value in _parse_integer_range(token):
        if not _is_short(value):
            raise token.build_error(ENDED_ID_EXPECTED)
        yield value


def _parse_duration_range(token: Token) -> Iterator[FilterValue]:
    yield _parse_open_range(token, DURATION_EXPECTED, _parse_duration)


def _parse_time_range(token: Token, expected: str = TIME_EXPECTED) -> Iterator[FilterValue]:
    if DATE_PATTERN.fullmatch(token.text) and isinstance(day := _parse_time(token.text), datetime):
        yield Range(day, _get_end_of_day(day))
    else:
        yield _parse_open_range(token, expected, _parse_time)


def _parse_finished_range(token: Token) -> Iterator[FilterValue]:
    """Parse a range of times in the past. A duration without a minus is the time since then."""
    for value in _parse_time_range(token, FINISHED_EXPECTED):
        assert isinstance(value, Range)
        bounds = [bound for bound in (value.low, value.high) if bound is not None]
        ages = [each for each in bounds if isinstance(each, timedelta) and each > timedelta(0)]
        if not ages:
            yield value
        elif len(ages) == len(bounds):
            yield Range(_negate(value.high), _negate(value.low))
        else:
            raise token.build_error(FINISHED_EXPECTED)


def _negate(bound: Bound | None) -> timedelta | None:
    return -bound if isinstance(bound, timedelta) else None


def _parse_open_range(token: Token, expected: str, parse: Callable[[str], Bound | None]) -> Range:
    """Parse a range of times. A date at its end includes that day."""
    bounds = _parse_range(token, expected, parse)
    has_end = ".." in token.text or token.text.startswith("<=")
    if has_end and DATE_PATTERN.fullmatch(token.text[-10:]) and isinstance(bounds.high, datetime):
        bounds = Range(bounds.low, _get_end_of_day(bounds.high))
    if bounds.low == bounds.high:
        raise token.build_error(expected)
    return bounds


def _parse_range(token: Token, expected: str, parse: Callable[[str], Bound | None]) -> Range:
    def parse_bound(text: str) -> Bound:
        bound = parse(text)
        if bound is None:
            raise token.build_error(expected)
        return bound

    first, dots, last = token.text.partition("..")
    if dots and (first or last):
        return Range(parse_bound(first) if first else None, parse_bound(last) if last else None)
    comparison = COMPARISON_PATTERN.fullmatch(token.text)
    assert comparison is not None
    sign, value = comparison[1], parse_bound(comparison[2])
    if isinstance(value, int) and sign in ("<", ">"):
        # The next integer. Times are continuous, so their bound stays.
        value += 1 if sign == ">" else -1
    match sign:
        case ">" | ">=":
            return Range(value, None)
        case "<" | "<=":
            return Range(None, value)
        case _:
            return Range(value, value)


def _parse_integer(text: str) -> int | None:
    if not INTEGER_PATTERN.fullmatch(text) or abs(int(text)) > MAX_BIGINT:
        return None
    return int(text)


def _parse_duration(text: str) -> timedelta | None:
    duration = parse_duration(text.removeprefix("-"))
    if duration is None or duration > MAX_DURATION:
        return None
    return -duration if text.startswith("-") else duration


def _parse_time(text: str) -> datetime | timedelta | None:
    if not DATE_PATTERN.fullmatch(text) and not TIMESTAMP_PATTERN.fullmatch(text):
        return _parse_duration(text)
    try:
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _get_end_of_day(day: datetime) -> datetime:
    try:
        return day + ONE_DAY - TIME_RESOLUTION
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


VALUE_PARSERS: Mapping[str, ValueParser] = {
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

ENDED_VALUE_PARSERS: Mapping[str, ValueParser] = {
    FilterField.TASK: _parse_pattern,
    FilterField.STATE: _parse_ended_states,
    FilterField.ID: _parse_ended_ids,
    FilterField.FINISHED: _parse_finished_range,
    FilterField.ERROR: _parse_pattern,
}
ENDED_FIELDS_EXPECTED = _describe_fields(ENDED_VALUE_PARSERS)

# Arguments that begin with a minus and are not such terms are options of the command.
NEGATED_TERM_PATTERN = re.compile(rf"-({'|'.join({**VALUE_PARSERS, **ENDED_VALUE_PARSERS})})[:.]")


# Writing


def _format_value(field: FilterField, value: FilterValue) -> str:
    text = str(value)
    if not isinstance(value, TextPattern):
        return text
    # Without quotes, these would have another meaning.
    is_special = text == "none" or field in BARE_FIELDS or NEEDS_QUOTES_PATTERN.search(text)
    return f'"{text}"' if is_special else text


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
