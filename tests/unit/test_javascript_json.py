"""JSON text as JavaScript writes it, held against a real JavaScript."""

import json
import math
import struct
import subprocess
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from graphile_worker.payloads.javascript import number, stringify
from tests.support.tools import NODE

# Reads texts, one in each line, and writes what becomes of them.
PROGRAM = """
const { createInterface } = require("readline");
createInterface({ input: process.stdin }).on("line", (line) =>
  console.log(JSON.stringify(JSON.stringify(JSON.parse(JSON.parse(line))))));
"""

TEXTS = 2_500
SAFE = 2**53

# As they are and as escapes; halves of pairs only as escapes, as no text has them otherwise.
CHARACTERS = st.one_of(
    st.characters(exclude_categories=["Cs"]),
    st.sampled_from('"\\/\b\f\n\r\t\x00\x1f\x7f\x80\u2028\u2029\ufeffé€😀'),
    st.integers(0, 0xFFFF).map(lambda code: f"\\u{code:04x}"),
    st.sampled_from([r"\ud83d\ude00", r"\ude00\ud83d", r"\ud800", r"\uDFFF", r"\/", r"\b"]),
)
KEYS = st.one_of(
    st.sampled_from(["__proto__", "constructor", "toString", "length", "", "a", "b", "01", "-1"]),
    st.sampled_from([2**31, 2**32 - 2, 2**32 - 1, 2**32, 2**53 + 1, 10**12]).map(str),
    st.integers(0, 20).map(str),
    st.text(max_size=3),
)
FLOATS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    # Any bits at all: as often very small or very large as in between.
    st.integers(0, 2**64 - 1)
    .map(lambda bits: struct.unpack("<d", struct.pack("<Q", bits))[0])
    .filter(math.isfinite),
    st.sampled_from([1e20, 1e21, 1e22, 1e-6, 1e-7, 5e-324, -0.0, 0.1 + 0.2, 123456789012345680.0]),
)
NUMBERS = st.one_of(
    st.integers(-SAFE, SAFE).map(str),
    FLOATS.map(repr),
    st.tuples(st.integers(-9999, 9999), st.integers(-400, 400)).map(lambda it: f"{it[0]}E{it[1]}"),
    st.sampled_from(["-0", "1.0", "1e0", "-0.0e5", "1e400", "-1e400", "0.10", "1E+2"]),
)


def quoted(character: str) -> str:
    is_escape = len(character) > 1
    return character if is_escape else json.dumps(character, ensure_ascii=False)[1:-1]


STRINGS = st.lists(CHARACTERS, max_size=8).map(lambda it: f'"{"".join(map(quoted, it))}"')
QUOTED_KEYS = st.one_of(STRINGS, KEYS.map(lambda key: json.dumps(key)))
SCALARS = st.one_of(NUMBERS, STRINGS, st.sampled_from(["true", "false", "null"]))


def arrays_and_objects(inside: Any) -> Any:
    members = st.tuples(QUOTED_KEYS, inside).map(": ".join)
    return st.one_of(
        st.lists(inside, max_size=4).map(lambda it: f"[{', '.join(it)}]"),
        # As pairs, so that keys may come twice.
        st.lists(members, max_size=6).map(lambda it: f"{{{', '.join(it)}}}"),
    )


JSON_TEXTS = st.recursive(SCALARS, arrays_and_objects, max_leaves=12)


def made_texts() -> list[str]:
    found: list[str] = []

    @settings(
        max_examples=TEXTS,
        database=None,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(JSON_TEXTS)
    def gather(text: str) -> None:
        found.append(text)

    gather()
    return found


def by_javascript(texts: list[str]) -> list[str]:
    given = "".join(f"{json.dumps(text)}\n" for text in texts)
    done = subprocess.run(
        [str(NODE), "-e", PROGRAM], input=given.encode(), capture_output=True, check=True
    )
    return [json.loads(line) for line in done.stdout.split(b"\n")[:-1]]


@pytest.mark.feature("F121")
@pytest.mark.once
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
    assert number(value) == text


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
