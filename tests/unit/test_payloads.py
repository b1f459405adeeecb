"""What a payload becomes as JSON text, and what is refused."""

import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphile_worker._payloads import encode
from graphile_worker._payloads.writing import MAX_DEPTH
from graphile_worker.errors import JobSpecError

SECRET = "s3cr3t-canary"


class Colour(Enum):
    RED = "red"
    PAIR = (1, 2)
    NUMBERED = {1: "one"}


class Level(IntEnum):
    HIGH = 3


class Word(StrEnum):
    YES = "yes"


@dataclass
class Address:
    street: str
    lines: tuple[str, ...] = ()


@dataclass
class Holder:
    held: Any


PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\x00"))
VALUES = st.recursive(
    PLAIN | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.feature("F14")
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (0, "0"),
        ("", '""'),
        ([], "[]"),
        ({}, "{}"),
        (-0.0, "-0.0"),
        (2**53 + 1, "9007199254740993"),
        ("é\u202e😀\ufeff", '"é\u202e😀\ufeff"'),
        ({"a": 1, "b": [2, None]}, '{"a":1,"b":[2,null]}'),
        ((1, (2,)), "[1,[2]]"),
        ({7}, "[7]"),
        (frozenset({"x"}), '["x"]'),
        (datetime(2024, 2, 29, 1, 2, 3, 4, UTC), '"2024-02-29T01:02:03.000004+00:00"'),
        (
            datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=-3))),
            '"2024-01-01T00:00:00-03:00"',
        ),
        (date(2024, 2, 29), '"2024-02-29"'),
        (time(1, 2, 3), '"01:02:03"'),
        (UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (Decimal("1.10"), '"1.10"'),
        (Colour.RED, '"red"'),
        (Colour.PAIR, "[1,2]"),
        (Level.HIGH, "3"),
        (Word.YES, '"yes"'),
        (Address("High St", ("1", "2")), '{"street":"High St","lines":["1","2"]}'),
        (MappingProxyType({"a": 1}), '{"a":1}'),
        (OrderedDict(b=1, a=2), '{"b":1,"a":2}'),
        ([{"at": date(2024, 1, 1)}], '[{"at":"2024-01-01"}]'),
    ],
)
def test_what_survives_json_is_written_in_one_way(value, text):
    assert encode(value) == text


@pytest.mark.feature("F29")
def test_none_is_left_to_the_database():
    assert encode(None) is None


@given(VALUES)
def test_every_json_value_comes_back_as_it_was(value):
    text = encode([value])

    assert text is not None
    assert json.loads(text) == [value]


@given(st.text(st.characters(codec=None)) | st.text("\\u0\x00a"))
def test_text_is_refused_exactly_when_it_holds_nul_or_a_lone_surrogate(text):
    cannot_be = "\x00" in text or any("\ud800" <= letter <= "\udfff" for letter in text)

    if cannot_be:
        assert _refusal({text: text}).code == "22P05"
    else:
        assert json.loads(encode({text: text}) or "") == {text: text}


@pytest.mark.parametrize("text", ["\\u0000", "\\\\u0000", "C:\\u0000", "u0000"])
def test_the_letters_of_a_nul_escape_are_not_a_nul(text):
    assert json.loads(encode([text]) or "") == [text]


@pytest.mark.parametrize("text", ["\x00", "\\\x00", "a\x00b", "\\u0000\x00"])
@pytest.mark.parametrize("wrap", [str, lambda text: {text: 1}, lambda text: [[text]]])
def test_nul_is_refused_wherever_it_stands(text, wrap):
    refusal = _refusal(wrap(text))

    assert (refusal.argument, refusal.code) == ("payload", "22P05")


@pytest.mark.parametrize("value", ["\ud800", "x\udfff", {"\ud800": 1}, [["\udc00"]]])
def test_lone_surrogates_are_refused(value):
    assert _refusal(value).code == "22P05"


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf"), 1e400])
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x], lambda x: {"a": (x,)}, Holder])
def test_numbers_that_json_does_not_have_are_refused(number, wrap):
    assert _refusal(wrap(number)).code == "22P02"


def test_an_integer_may_have_4300_digits():
    assert json.loads(encode(10**4300 - 1) or "") == 10**4300 - 1


def test_a_longer_integer_is_refused_because_no_python_would_read_it():
    assert _refusal(10**4300).code == "22P02"
    assert _refusal({"n": -(10**5000)}).code == "22P02"


@pytest.mark.parametrize("value", [b"x", bytearray(b"x"), object(), 1j, range(3), Address, len])
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x], lambda x: {"a": x}, Holder])
def test_what_has_no_json_form_is_refused_by_its_type(value, wrap):
    refusal = _refusal(wrap(value))

    assert refusal.code == "22P02"
    assert type(value).__name__ in refusal.reason


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x], lambda x: {"a": x}, Holder])
def test_a_naive_datetime_is_refused(wrap):
    refusal = _refusal(wrap(datetime(2024, 1, 1)))

    assert refusal.code == "22007"
    assert "naive" in refusal.reason


@pytest.mark.parametrize("key", [1, None, True, 1.5, (1,), b"x"])
@pytest.mark.parametrize(
    "wrap", [lambda x: x, lambda x: [{"a": x}], lambda x: (x,), Holder, MappingProxyType]
)
def test_keys_that_are_not_text_are_refused(key, wrap):
    refusal = _refusal(wrap({key: 1}))

    assert refusal.code == "22P02"
    assert type(key).__name__ in refusal.reason


def test_keys_in_the_value_of_an_enum_are_held_to_the_same_rule():
    assert _refusal(Colour.NUMBERED).code == "22P02"


@pytest.mark.parametrize("kind", ["list", "dict", "tuple"])
@pytest.mark.parametrize("depth", [1, 100, MAX_DEPTH])
def test_nesting_is_written_down_to_the_limit(kind, depth):
    assert encode(_nested(kind, depth)) is not None


@pytest.mark.parametrize("kind", ["list", "dict", "tuple"])
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 1000, 5000])
def test_deeper_nesting_is_refused_as_postgresql_would_say_it(kind, depth):
    assert _refusal(_nested(kind, depth)).code == "54001"


def test_the_limit_counts_on_through_values_that_become_objects():
    within = _nested("list", 300, inside=Holder(_nested("list", 300)))

    assert _refusal(within).code == "54001"


def test_cycles_are_refused():
    itself: list[object] = []
    itself.append(itself)
    holder = Holder(None)
    holder.held = holder
    mapping: dict[str, object] = {}
    mapping["inner"] = {"outer": mapping}

    for cycle in (itself, holder, mapping):
        assert _refusal(cycle).code in ("54001", "22P02")


def test_the_same_value_twice_is_no_cycle():
    shared = [1]

    assert encode([shared, shared, Holder(shared)]) == '[[1],[1],{"held":[1]}]'


@pytest.mark.parametrize(
    ("payload", "size"), [("abc", 5), ("é", 4), ("😀", 6), ({"k": "ü"}, 10), ([], 2)]
)
def test_the_limit_of_a_client_counts_utf8_bytes(payload, size):
    assert encode(payload, max_bytes=size) is not None

    refusal = _refusal(payload, max_bytes=size - 1)

    assert refusal.code == "54000"
    assert f"{size} bytes" in refusal.reason


@pytest.mark.feature("F14")
@pytest.mark.parametrize(
    "payload",
    [
        {SECRET: b"x"},
        {SECRET: {1: 2}},
        [SECRET, float("nan")],
        SECRET + "\x00",
        SECRET + "\ud800",
        Holder(SECRET.encode()),
        {"a": [SECRET, object()]},
        [[SECRET]] * 10,
    ],
)
def test_a_refusal_never_quotes_the_payload(payload):
    refusal = _refusal(payload, max_bytes=3)

    assert SECRET not in str(refusal)
    assert SECRET not in repr(refusal)


def test_the_refused_value_can_be_looked_at():
    refusal = _refusal({"a": {1: 2}})

    assert refusal.value == {1: 2}


def test_a_payload_is_not_changed_by_being_written():
    payload: Mapping[str, object] = {"a": (1, {2}), "b": Address("x")}

    encode(payload)

    assert payload == {"a": (1, {2}), "b": Address("x")}


def _refusal(payload: object, max_bytes: int | None = None) -> JobSpecError:
    with pytest.raises(JobSpecError) as caught:
        encode(payload, max_bytes=max_bytes)
    assert caught.value.argument == "payload"
    return caught.value


def _nested(kind: str, depth: int, inside: object = None) -> object:
    wrap = {"list": lambda x: [x], "tuple": lambda x: (x,), "dict": lambda x: {"a": x}}[kind]
    empty: dict[str, object] = {"list": [], "tuple": (), "dict": {}}
    value = empty[kind] if inside is None else wrap(inside)
    for _ in range(depth - 1):
        value = wrap(value)
    return value
