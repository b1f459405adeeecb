"""JSON text as JavaScript writes it, held against a real JavaScript."""

import json
import math
import random
import struct
import subprocess
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

from graphile_worker._payloads.javascript import format_number, stringify
from tests.support.tools import NODE

T = TypeVar("T")

# Reads texts, one in each line, and writes what becomes of them.
PROGRAM = """
const { createInterface } = require("readline");
createInterface({ input: process.stdin }).on("line", (line) =>
  console.log(JSON.stringify(JSON.stringify(JSON.parse(JSON.parse(line))))));
"""

TEXTS = 5_000
SAFE = 2**53

LITERALS = ("true", "false", "null")
# Halves of pairs are escapes, as no text has them otherwise.
ESCAPES = (r"\ud83d\ude00", r"\ude00\ud83d", r"\ud800", r"\uDFFF", r"\/", r"\b")
CHARACTERS = '"\\/\b\f\n\r\t\x00\x1f\x7f\x80\u2028\u2029\ufeffé€😀'
KEYS = ("__proto__", "constructor", "toString", "length", "", "a", "b", "01", "-1")
INDEXES = (2**31, 2**32 - 2, 2**32 - 1, 2**32, 2**53 + 1, 10**12)
FLOATS = (1e20, 1e21, 1e22, 1e-6, 1e-7, 5e-324, -0.0, 0.1 + 0.2, 123456789012345680.0)
NUMBERS = ("-0", "1.0", "1e0", "-0.0e5", "1e400", "-1e400", "0.10", "1E+2")


class Texts:
    """JSON texts with all that two languages may write differently; the same ones for a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def text(self, depth: int = 3) -> str:
        if depth == 0 or self._random.random() < 0.3:
            return self._one_of(self._number, self._string, lambda: self._pick(LITERALS))
        return self._one_of(lambda: self._array(depth - 1), lambda: self._object(depth - 1))

    def _array(self, depth: int) -> str:
        return f"[{', '.join(self.text(depth) for _ in self._up_to(4))}]"

    def _object(self, depth: int) -> str:
        # As text, so that keys may come twice.
        return f"{{{', '.join(f'{self._key()}: {self.text(depth)}' for _ in self._up_to(6))}}}"

    def _key(self) -> str:
        return self._one_of(
            self._string,
            lambda: json.dumps(self._pick(KEYS)),
            lambda: f'"{self._pick(INDEXES)}"',
            lambda: f'"{self._random.randint(0, 20)}"',
        )

    def _string(self) -> str:
        return f'"{"".join(self._character() for _ in self._up_to(8))}"'

    def _character(self) -> str:
        return self._one_of(
            lambda: _as_it_is(self._pick(CHARACTERS)),
            lambda: _as_it_is(self._any_character()),
            lambda: f"\\u{self._random.randint(0, 0xFFFF):04x}",
            lambda: self._pick(ESCAPES),
        )

    def _any_character(self) -> str:
        code = self._random.randrange(self._pick((0x80, 0x800, 0xD800, 0x110000)))
        return chr(code) if not 0xD800 <= code < 0xE000 else "\ue000"

    def _number(self) -> str:
        return self._one_of(
            lambda: str(self._random.randint(-SAFE, SAFE)),
            lambda: str(self._random.randint(-20, 20)),
            lambda: repr(self._any_float()),
            lambda: repr(self._pick(FLOATS)),
            lambda: f"{self._random.randint(-9999, 9999)}E{self._random.randint(-400, 400)}",
            lambda: self._pick(NUMBERS),
        )

    def _any_float(self) -> float:
        """Any bits at all: as often very small or very large as in between."""
        bits = struct.pack("<Q", self._random.getrandbits(64))
        (found,) = struct.unpack("<d", bits)
        return found if math.isfinite(found) else self._random.random()

    def _up_to(self, most: int) -> range:
        return range(self._random.randint(0, most))

    def _pick(self, things: Sequence[T]) -> T:
        return self._random.choice(things)

    def _one_of(self, *ways: Callable[[], str]) -> str:
        return self._pick(ways)()


def _as_it_is(character: str) -> str:
    return json.dumps(character, ensure_ascii=False)[1:-1]


def made_texts() -> list[str]:
    texts = Texts(seed=8)
    return [texts.text() for _ in range(TEXTS)]


def by_javascript(texts: list[str]) -> list[str]:
    given = "".join(f"{json.dumps(text)}\n" for text in texts)
    done = subprocess.run(
        [str(NODE), "-e", PROGRAM], input=given.encode(), capture_output=True, check=True
    )
    return [json.loads(line) for line in done.stdout.split(b"\n")[:-1]]


@pytest.mark.feature("F121")
@pytest.mark.single_version
def test_what_is_read_is_written_as_javascript_writes_it(figure):
    texts = made_texts()

    theirs = by_javascript(texts)

    ours = [stringify(json.loads(text)) for text in texts]
    differ = [at for at in range(len(texts)) if ours[at] != theirs[at]]
    assert len(texts) >= 2_000
    # A JavaScript that has read thousands of other objects may leave out a key: one that has read
    # nothing else decides.
    assert len(differ) <= 3
    for at in differ:
        assert (texts[at], ours[at]) == (texts[at], *by_javascript([texts[at]]))
    figure(f"{len(texts)} JSON texts are written as Node writes them")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (-0.0, "0"),
        (0.1 + 0.2, "0.30000000000000004"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (1.5e300, "1.5e+300"),
        (1e-6, "0.000001"),
        (1e-7, "1e-7"),
        (-1.25e-9, "-1.25e-9"),
        (123.456, "123.456"),
        (math.inf, "null"),
    ],
)
def test_a_number_is_written_as_in_javascript(value, text):
    assert format_number(value) == text


@pytest.mark.parametrize("value", [2**53 + 1, -(10**30), 12345678901234567890])
def test_a_large_integer_keeps_its_digits(value):
    assert stringify([value]) == f"[{value}]"


def test_keys_that_look_like_indices_come_first():
    assert stringify({"b": 1, "10": 2, "9": 3, "01": 4}) == '{"9":3,"10":2,"b":1,"01":4}'


def test_half_of_a_pair_is_an_escape_and_nothing_else_needs_to_be_ascii():
    assert stringify("é\u2028😀\ud800\x1f") == '"é\u2028😀\\ud800\\u001f"'


def test_depth_is_no_matter():
    value: Any = []
    for _ in range(100_000):
        value = [value]

    assert stringify(value) == "[" * 100_001 + "]" * 100_001
    while value:
        # Not all at once, which would end the program.
        value = value.pop()
