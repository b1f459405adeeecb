"""Which jobs are meant: `task:render_pdf state:failed error:timeout age:>10m`, read and written.

A filter is terms with blanks between them, and a job must fulfil them all. A term is a field, a
colon and values with commas between them, of which one must fit; a `-` before it turns it around.
A bare word is an id, or part of a task's name, a key or an error. `"…"` holds blanks and commas, a
backslash takes its meaning from any character, `*` stands for anything in a name.

This is words only. `administration/finding.py` looks for the jobs.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from graphile_worker.administration.states import ALIASES, State, states_called
from graphile_worker.durations import duration_text, read_duration
from graphile_worker.errors import FilterError

LARGEST = 2**63 - 1
LONGEST = timedelta(days=36_500)
DAY = timedelta(days=1)
TICK = timedelta(microseconds=1)

NUMBER = re.compile(r"-?[0-9]{1,19}")
BOUNDS = re.compile(r"(>=|<=|>|<|=)?(.*)", re.DOTALL)
DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}.*")
# What JSON calls a number, and jsonb can hold.
JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?")
JSON_WORDS = ("true", "false", "null")

UNPLAIN = re.compile(r"[\s,\"\\]")
DIGITS = re.compile(r"[0-9]+")
NAME = re.compile(r"[A-Za-z_]+(?=[:.])")


class Field(StrEnum):
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
class Words:
    """A text, or a pattern: whatever stands between two parts."""

    parts: tuple[str, ...]

    @property
    def exact(self) -> str | None:
        return self.parts[0] if len(self.parts) == 1 else None

    @property
    def like(self) -> str:
        """As PostgreSQL's LIKE takes it."""
        return "%".join(re.sub(r"([\\%_])", r"\\\1", part) for part in self.parts)

    def __str__(self) -> str:
        return "*".join(_escaped(part) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Nothing:
    """The job has none."""

    def __str__(self) -> str:
        return "none"


@dataclass(frozen=True, slots=True)
class Json:
    """A plain value in a payload, as JSON."""

    text: str

    @property
    def string(self) -> str | None:
        """The text that it is, if it is one."""
        return str(json.loads(self.text)) if self.text.startswith('"') else None

    def __str__(self) -> str:
        return self.text if self.string is None else f'"{_escaped(self.string)}"'


# A moment, as such or from now on; or a number.
Bound = int | datetime | timedelta


@dataclass(frozen=True, slots=True)
class Within:
    """From here to there, both included; None is as far as it goes."""

    low: Bound | None
    high: Bound | None

    def __str__(self) -> str:
        if self.low == self.high:
            return _bound_text(self.low)
        if self.high is None:
            return f">={_bound_text(self.low)}"
        if self.low is None:
            return f"<={_bound_text(self.high)}"
        return f"{_bound_text(self.low)}..{_bound_text(self.high)}"


Value = Words | Nothing | Json | Within | State


@dataclass(frozen=True, slots=True)
class Term:
    """One of the values must fit, or none may; in a payload, what `path` leads to."""

    field: Field
    values: tuple[Value, ...]
    is_negated: bool = False
    path: tuple[str, ...] = ()

    def __str__(self) -> str:
        values = ",".join(_value_text(self.field, value) for value in self.values)
        return f"{'-' * self.is_negated}{_name_text(self)}{values}"


@dataclass(frozen=True, slots=True)
class Filter:
    """All terms must hold; without any, every job is meant."""

    terms: tuple[Term, ...] = ()

    def __str__(self) -> str:
        return " ".join(map(str, self.terms))

    def __and__(self, other: "Filter") -> "Filter":
        return Filter(self.terms + other.terms)


def parse(text: str) -> Filter:
    """The filter that a text says, or FilterError: where, and what may stand there."""
    reader = _Reader(text)
    terms = []
    while reader.finds_more():
        terms.append(_read_term(reader))
    return Filter(tuple(terms))


def with_ids(ids: Iterable[int]) -> Filter:
    """Just these jobs."""
    return Filter((Term(Field.ID, tuple(Within(each, each) for each in ids)),))


def with_keys(keys: Iterable[str]) -> Filter:
    """The jobs with these keys, taken literally."""
    return Filter((Term(Field.KEY, tuple(Words((key,)) for key in keys)),))


def in_states(*states: State) -> Filter:
    return Filter((Term(Field.STATE, states),))


# Reading


@dataclass(frozen=True, slots=True)
class _Word:
    """A value as it was written: between its parts there were stars."""

    parts: tuple[str, ...]
    is_quoted: bool
    column: int

    @property
    def text(self) -> str:
        return "*".join(self.parts)

    @property
    def plain(self) -> str | None:
        """The text, if it may be more than just words."""
        return None if self.is_quoted else self.text

    def expected(self, what: str) -> FilterError:
        return FilterError(self.column, what, self.text)


class _Reader:
    """A place in a text that moves on."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        for place, letter in enumerate(text):
            if letter == "\x00" or "\ud800" <= letter <= "\udfff":
                raise FilterError(place + 1, "text that PostgreSQL can hold", letter)

    @property
    def column(self) -> int:
        return self._at + 1

    @property
    def rest(self) -> str:
        return self._text[self._at :]

    def finds_more(self) -> bool:
        """Is there another term? Goes to its beginning."""
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1
        return self._at < len(self._text)

    def take(self, letter: str) -> bool:
        found = self._text.startswith(letter, self._at)
        self._at += len(letter) * found
        return found

    def take_name(self) -> str | None:
        """The name of a field, if a colon or a path comes after it."""
        found = NAME.match(self._text, self._at)
        if found is None:
            return None
        self._at = found.end()
        return found[0]

    def take_word(self, ends: str = ",") -> _Word:
        """What stands up to a blank, the end or one of these letters, or between quotes."""
        column = self.column
        is_quoted = self.take('"')
        parts, current = [], ""
        while not self._is_over(ends, is_quoted):
            letter = self._next()
            if letter == "*":
                parts.append(current)
                current = ""
            else:
                current += self._next_escaped() if letter == "\\" else letter
        if is_quoted:
            self._close(column, ends)
        return _Word((*parts, current), is_quoted, column)

    def _is_over(self, ends: str, is_quoted: bool) -> bool:
        if self._at == len(self._text):
            return True
        letter = self._text[self._at]
        return letter == '"' if is_quoted else letter.isspace() or letter in ends

    def _next(self) -> str:
        self._at += 1
        return self._text[self._at - 1]

    def _next_escaped(self) -> str:
        if self._at == len(self._text):
            raise FilterError(self.column, "something after the backslash", "")
        return self._next()

    def _close(self, column: int, ends: str) -> None:
        if not self.take('"'):
            raise FilterError(column, 'a " at the end', self._text[column - 1 :])
        if not self._is_over(ends, is_quoted=False):
            raise FilterError(self.column, "a blank or a comma", self.rest)


def _read_term(reader: _Reader) -> Term:
    is_negated = reader.take("-")
    column, before = reader.column, reader.rest
    name = reader.take_name()
    if name is None:
        return _read_bare(reader, is_negated)
    if name not in FIELDS:
        known = ", ".join(FIELDS)
        raise FilterError(column, f"one of {known}, or the text in quotes", before.split()[0])
    field = Field(name)
    path = _read_path(reader) if field is Field.PAYLOAD else ()
    if not reader.take(":"):
        raise FilterError(reader.column, f"a colon after {name}", reader.rest)
    values = [value for word in _read_words(reader) for value in FIELDS[name](word)]
    return Term(field, tuple(dict.fromkeys(values)), is_negated, path)


def _read_bare(reader: _Reader, is_negated: bool) -> Term:
    words = list(_read_words(reader))
    if all(DIGITS.fullmatch(word.plain or "") for word in words):
        ids = [value for word in words for value in _numbers(word)]
        return Term(Field.ID, tuple(dict.fromkeys(ids)), is_negated)
    texts = [value for word in words for value in _words(word)]
    return Term(Field.TEXT, tuple(dict.fromkeys(texts)), is_negated)


def _read_words(reader: _Reader) -> Iterator[_Word]:
    while True:
        word = reader.take_word()
        if word.text == "" and not word.is_quoted:
            raise word.expected("a value")
        yield word
        if not reader.take(","):
            return


def _read_path(reader: _Reader) -> tuple[str, ...]:
    path = []
    while reader.take("."):
        word = reader.take_word(".:,")
        if word.text == "" and not word.is_quoted:
            raise word.expected("a key of the payload")
        path.append(word.text)
    if not path:
        raise FilterError(reader.column, "a key, as in payload.user.id:42", reader.rest)
    return tuple(path)


def _words(word: _Word) -> Iterator[Value]:
    if word.parts == ("",):
        raise word.expected("a text")
    yield Words(word.parts)


def _words_or_none(word: _Word) -> Iterator[Value]:
    if word.plain == "none":
        yield Nothing()
    else:
        yield from _words(word)


def _literal(word: _Word) -> Iterator[Value]:
    yield from _words(_Word((word.text,), word.is_quoted, word.column))


def _states(word: _Word) -> Iterator[Value]:
    found = states_called(word.text)
    if not found:
        raise word.expected(f"one of {', '.join((*State, *ALIASES))}")
    yield from found


def _numbers(word: _Word) -> Iterator[Value]:
    yield _within(word, "a number, or a range such as >=5 or 3..7", _number, step=1)


def _durations(word: _Word) -> Iterator[Value]:
    expected = "a time with < or > before it, such as >10m or <1h30m"
    found = _within(word, expected, _duration, step=None)
    if found.low == found.high:
        raise word.expected(expected)
    yield found


def _moments(word: _Word) -> Iterator[Value]:
    if DATE.fullmatch(word.text) and isinstance(day := _moment(word.text), datetime):
        yield Within(day, _end_of(day))
        return
    expected = "a date such as 2026-08-01, or < or > and a moment: >2026-08-01T10:00Z, <1h, >-10m"
    found = _within(word, expected, _moment, step=None)
    if _ends_with_day(word.text) and isinstance(found.high, datetime):
        found = Within(found.low, _end_of(found.high))
    if found.low == found.high:
        raise word.expected(expected)
    yield found


def _ends_with_day(text: str) -> bool:
    """Does it go on up to a day, and that one is meant too?"""
    return (".." in text or text.startswith("<=")) and bool(DATE.fullmatch(text[-10:]))


def _json(word: _Word) -> Iterator[Value]:
    """What is not in quotes may be meant as a number and so on, or as a text."""
    text = word.plain
    if text is not None and (text in JSON_WORDS or JSON_NUMBER.fullmatch(text)):
        yield Json(text)
    yield Json(json.dumps(word.text, ensure_ascii=False))


def _within(
    word: _Word, expected: str, read: Callable[[str], Bound | None], step: int | None
) -> Within:
    def bound(text: str) -> Bound:
        found = read(text)
        if found is None:
            raise word.expected(expected)
        return found

    first, dots, last = word.text.partition("..")
    if dots:
        if not first and not last:
            raise word.expected(expected)
        return Within(bound(first) if first else None, bound(last) if last else None)
    matched = BOUNDS.fullmatch(word.text)
    assert matched is not None
    sign, value = matched[1], bound(matched[2])
    return _compared(sign, value, step)


def _compared(sign: str | None, value: Bound, step: int | None) -> Within:
    """Whole numbers have a next one; of times nobody asks for a microsecond more or less."""
    beside = step if isinstance(value, int) and step is not None and sign in ("<", ">") else 0
    match sign:
        case ">" | ">=":
            return Within(value + beside if isinstance(value, int) else value, None)
        case "<" | "<=":
            return Within(None, value - beside if isinstance(value, int) else value)
        case _:
            return Within(value, value)


def _number(text: str) -> int | None:
    if not NUMBER.fullmatch(text) or abs(int(text)) > LARGEST:
        return None
    return int(text)


def _duration(text: str) -> timedelta | None:
    negated = text.startswith("-")
    span = read_duration(text.removeprefix("-"))
    if span is None or span > LONGEST:
        return None
    return -span if negated else span


def _moment(text: str) -> datetime | timedelta | None:
    if not DATE.fullmatch(text) and not MOMENT.fullmatch(text):
        return _duration(text)
    try:
        found = datetime.fromisoformat(text)
        aware = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
        return aware.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _end_of(day: datetime) -> datetime:
    try:
        return day + DAY - TICK
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


Reading = Callable[[_Word], Iterator[Value]]

FIELDS: Mapping[str, Reading] = {
    Field.TASK: _words,
    Field.QUEUE: _words_or_none,
    Field.STATE: _states,
    Field.ID: _numbers,
    Field.KEY: _words_or_none,
    Field.WORKER: _words,
    Field.ERROR: _words,
    Field.ATTEMPTS: _numbers,
    Field.PRIORITY: _numbers,
    Field.AGE: _durations,
    Field.RUN: _moments,
    Field.CREATED: _moments,
    Field.FLAG: _literal,
    Field.PAYLOAD: _json,
}


# Writing


def _name_text(term: Term) -> str:
    match term.field:
        case Field.TEXT:
            return ""
        case Field.PAYLOAD:
            return f"payload.{'.'.join(map(_key_text, term.path))}:"
        case _:
            return f"{term.field}:"


def _value_text(field: Field, value: Value) -> str:
    text = str(value)
    if not isinstance(value, Words):
        return text
    # Quotes, where it would be read as something else.
    is_special = text == "none" or field is Field.TEXT or UNPLAIN.search(text)
    return f'"{text}"' if is_special else text


def _key_text(key: str) -> str:
    return f'"{_escaped(key)}"'


def _bound_text(bound: Bound | None) -> str:
    match bound:
        case datetime():
            return bound.isoformat()
        case timedelta():
            return duration_text(bound)
        case _:
            return str(bound)


def _escaped(text: str) -> str:
    return re.sub(r'(["\\*])', r"\\\1", text)
