"""The parser of crontabs under texts that nobody would write: it takes or refuses, and quickly."""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from random import Random
from typing import TypeVar

import pytest

from graphile_worker.crontab import ParsedCronItem, parse_crontab
from graphile_worker.errors import CrontabError
from tests.support.crontabs import Crontabs
from tests.support.tiers import size

T = TypeVar("T")

SEED = 268
MOST = 2048
PATIENCE = size(gate=10.0, nightly=1.0)
NOW = datetime(2024, 2, 28, 23, 58, 30, tzinfo=UTC)

# What JSON5 is made of, and what else means something in a crontab.
FRAGMENTS = (
    "{", "}", "[", "]", "{a:", "['", "'", '"', "\\", "\\u0061", "\\u", "\\x4", "\\\n", "/*", "*/",
    "/**/", "//", "/", "*", ",", ":", "1", "0", "0x", "0xf", ".", "e", "1e", "-", "+", "a", "$",
    "null", "true", "NaN", "Infinity", " ", "\t", "\xa0", "\ufeff", "\u2028", "\r", "\r\n", "\n",
    "ü", "名", "\U0001d400", "\U0001f600", "\ud800", "\x00", "?", "&", "=", "%", "%41", "%ff", "+",
    "#", "id=", "fill=", "1d", "max=", "jobKey=", "* ", "*/", "1-", "-5", "0-59", "[1,", "{a:1,",
    "'a':", "[/**/", "a:[", "1 ", ", ", "[{a:", "\\'", "''", "a\\u0061", "{a:1},", "[1],",
    "-1.5e-5,",
)  # fmt: skip


class Fuzzer:
    """One text for each number, always the same."""

    def __init__(self, number: int) -> None:
        self._random = Random(f"{SEED}-{number}")
        self._crontabs = Crontabs(f"{SEED}-{number}")

    def text(self) -> str:
        text = self._one_of((self._crontabs.crontab, self._stormy))()
        for _ in range(self._one_of((0, 0, 1, 1, 2, 4, 16))):
            text = self._one_of(self._mutations())(text)
        return shortened(text)

    def _stormy(self) -> str:
        """A payload of a few fragments, again and again: what a bad parser goes back over."""
        opening = self._run(self._one_of((1, 5, 40, 400, MOST)))
        middle = self._run(self._one_of((0, 1, 40)))
        closing = self._run(self._one_of((0, 5, 40, 400)))
        start = self._one_of(("", "a:", "a:[", "a:'", "a:[1,"))
        return f"* * * * * task {{{start}{shortened(opening + middle + closing, MOST - 40)}}}"

    def _run(self, times: int) -> str:
        fragments = self._random.choices(FRAGMENTS, k=self._one_of((1, 1, 2, 3)))
        return "".join(fragments) * times

    def _mutations(self) -> list[Callable[[str], str]]:
        return [self._cut, self._copy, self._insert, self._splice, self._swap, self._nest]

    def _cut(self, text: str) -> str:
        start, end = self._slice(text)
        return text[:start] + text[end:]

    def _copy(self, text: str) -> str:
        start, end = self._slice(text)
        return text[:end] + text[start:end] * self._one_of((1, 2, 50)) + text[end:]

    def _insert(self, text: str) -> str:
        at, _ = self._slice(text)
        return text[:at] + self._anything() + text[at:]

    def _splice(self, text: str) -> str:
        other = self._crontabs.crontab()
        return text[: self._slice(text)[0]] + other[self._slice(other)[0] :]

    def _swap(self, text: str) -> str:
        start, end = self._slice(text)
        return text[end:] + text[start:end] + text[:start]

    def _nest(self, text: str) -> str:
        start, end = self._slice(text)
        opening, closing = self._one_of(
            (("[", "]"), ("{a:", "}"), ("{'a' : [", "]}"), ("/*", "*/"))
        )
        depth = self._one_of((1, 10, 30, 60, 300))
        return text[:start] + opening * depth + text[start:end] + closing * depth + text[end:]

    def _anything(self) -> str:
        if self._random.random() < 0.6:
            return self._run(self._one_of((1, 1, 3, 200)))
        return "".join(self._letter() for _ in range(self._one_of((1, 1, 5, 50))))

    def _letter(self) -> str:
        return chr(self._random.randrange(self._one_of((0x80, 0x100, 0x3000, 0x10000, 0x110000))))

    def _slice(self, text: str) -> tuple[int, int]:
        start = self._random.randint(0, len(text))
        return start, min(len(text), start + self._one_of((0, 1, 2, 8, 100)))

    def _one_of(self, things: Sequence[T]) -> T:
        return self._random.choice(things)


def shortened(text: str, most: int = MOST) -> str:
    """As much of it as has room in so many bytes."""
    size = len(text.encode(errors="surrogatepass"))
    return text if size <= most else shortened(text[: len(text) * most // size], most)


def read(text: str) -> tuple[float, list[ParsedCronItem] | CrontabError]:
    """How long it takes to read a text, and what comes of it."""
    start = time.thread_time()
    try:
        found: list[ParsedCronItem] | CrontabError = parse_crontab(text)
    except CrontabError as error:
        found = error
    # Of its own work: what else the machine does meanwhile does not count.
    return time.thread_time() - start, found


def examine(text: str) -> tuple[float, bool]:
    """How long it takes to read, and has it items? Fails where the parser does."""
    seconds, found = read(text)
    if seconds > PATIENCE:
        # Again: on a busy machine the same work takes longer.
        seconds = min(read(text)[0] for _ in range(3))
    assert seconds < PATIENCE, f"{seconds:.1f} s"
    if isinstance(found, CrontabError):
        check_refusal(found)
        return seconds, False
    for item in found:
        check_item(item)
    return seconds, found != []


def check_refusal(error: CrontabError) -> None:
    assert error.problems
    assert all(problem.line > 0 and problem.column > 0 for problem in error.problems)
    assert all(problem.expected in str(error) for problem in error.problems)


def check_item(item: ParsedCronItem) -> None:
    assert item.is_due(NOW) in (True, False)
    following = next(item.upcoming(NOW), None)
    assert following is None or (following > NOW and item.is_due(following))


TEXTS = size(gate=500, nightly=400_000)

# CPU time for all texts. The machine may be busy, so the limit of wall time only ends a parser that
# hangs.
MAX_CPU_SECONDS = 1800
HANG_TIMEOUT_SECONDS = 4 * MAX_CPU_SECONDS


@pytest.mark.feature("F255", "F257", "F268")
@pytest.mark.single_version
@pytest.mark.timeout(HANG_TIMEOUT_SECONDS)
def test_any_text_is_accepted_or_rejected_within_a_second(figure: Callable[[str], None]) -> None:
    taken, slowest = 0, (0.0, 0)
    began = time.thread_time()

    for number in range(TEXTS):
        text = Fuzzer(number).text()
        try:
            took, has_items = examine(text)
        except Exception as error:
            error.add_note(f"seed {SEED}, text {number}: {text!r}")
            raise
        taken += has_items
        slowest = max(slowest, (took, number))

    assert time.thread_time() - began < MAX_CPU_SECONDS
    took, slow = slowest
    figure(
        f"crontab parser fuzzed: {TEXTS} texts up to 2 kB, {taken} with items; "
        f"slowest {took * 1000:.0f} ms (text {slow} of seed {SEED})"
    )
    assert taken > TEXTS / 50


# What a parser that goes back would go back over.
SUSPECTS = (
    "[", "{a:", "{'a':", "[[],", "[{a:[", "/*", "/**/", "//", "/", "'", "\\", "\\u0061", "1", "1.",
    "0x", "0xf", "1e", "-", "a", "ü", "a:1,", "1,", "a:[", " ", "\xa0", "\u3000", "a ", "1 ,", "''",
    "a:{},", "[],", "'a':[1,],", "a:'b',", "null,", "[/* */", "{/**/a/**/:/**/", "NaN", "\\'",
    "/**/,", "// \U0001d400", "\U0001d400", "-1.5e-5,", "-0x1,", "[1],", "{a:1},", "a:[1],",
)  # fmt: skip


SUSPECT_STEP = size(gate=4, nightly=1)


@pytest.mark.feature("F268")
@pytest.mark.single_version
@pytest.mark.timeout(HANG_TIMEOUT_SECONDS)
def test_a_payload_with_repetitions_is_parsed_within_a_second(
    figure: Callable[[str], None],
) -> None:
    took = {
        (start, suspect, end): examine(f"* * * * * task {{{start}{run}{end}}}")[0]
        for suspect in SUSPECTS[::SUSPECT_STEP]
        for run in [shortened(suspect * MOST, MOST - 40)]
        for start in ("", "a:[", "a:'", "a:1")
        for end in ("", "x")
    }

    slowest = max(took, key=lambda parts: took[parts])
    figure(f"payloads of 2 kB of one thing: slowest {took[slowest] * 1000:.0f} ms, {slowest}")


@pytest.mark.parametrize(
    "text",
    [
        "*" * 65_537,
        "é" * 32_769,
        "\n" * 1_000_000,
        "* * * * * task {a: " + "[" * 1_000_000 + "}",
        "* * * * * task\n" * 100_000,
        "* * * * * task ?" + "id=a&" * 1_000_000,
        "\ud800" * 65_537,
    ],
    ids=lambda text: ascii(text[:24]),
)
def test_more_than_64_kb_are_rejected_without_parsing(text: str) -> None:
    start = time.thread_time()

    with pytest.raises(CrontabError, match="at most 65,536 bytes"):
        parse_crontab(text)

    # Of its own work: the machine may stand still.
    assert time.thread_time() - start < size(gate=2.0, nightly=0.1)


def test_64_kb_are_read() -> None:
    line = "* * * * * task\n"

    [item] = parse_crontab(line + "#" * (64 * 1024 - len(line)))

    assert item.task == "task"
