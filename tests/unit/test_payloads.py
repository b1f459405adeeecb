"""Payloads are written as JSON text, or rejected."""

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
    value: Any


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
def test_a_value_is_written_as_json(value, text):
    assert encode(value) == text


@pytest.mark.feature("F29")
def test_none_is_left_to_the_database():
    assert encode(None) is None


@given(VALUES)
def test_every_json_value_survives_a_round_trip(value):
    text = encode([value])

    assert text is not None
    assert json.loads(text) == [value]


@given(st.text(st.characters(codec=None)) | st.text("\\u0\x00a"))
def test_text_is_rejected_exactly_when_it_contains_nul_or_a_lone_surrogate(text):
    is_invalid = "\x00" in text or any("\ud800" <= letter <= "\udfff" for letter in text)

    if is_invalid:
        assert _encode_error({text: text}).code == "22P05"
    else:
        assert json.loads(encode({text: text}) or "") == {text: text}


@pytest.mark.parametrize("text", ["\\u0000", "\\\\u0000", "C:\\u0000", "u0000"])
def test_the_text_of_a_nul_escape_is_not_a_nul(text):
    assert json.loads(encode([text]) or "") == [text]


@pytest.mark.parametrize("text", ["\x00", "\\\x00", "a\x00b", "\\u0000\x00"])
@pytest.mark.parametrize("wrap", [str, lambda text: {text: 1}, lambda text: [[text]]])
def test_nul_is_rejected_anywhere(text, wrap):
    error = _encode_error(wrap(text))

    assert (error.argument, error.code) == ("payload", "22P05")


@pytest.mark.parametrize("value", ["\ud800", "x\udfff", {"\ud800": 1}, [["\udc00"]]])
def test_lone_surrogates_are_rejected(value):
    assert _encode_error(value).code == "22P05"


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf"), 1e400])
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x], lambda x: {"a": (x,)}, Holder])
def test_nan_and_infinities_are_rejected(number, wrap):
    assert _encode_error(wrap(number)).code == "22P02"


def test_an_integer_may_have_4300_digits():
    assert json.loads(encode(10**4300 - 1) or "") == 10**4300 - 1


def test_an_integer_with_more_digits_than_python_reads_is_rejected():
    assert _encode_error(10**4300).code == "22P02"
    assert _encode_error({"n": -(10**5000)}).code == "22P02"


@pytest.mark.parametrize("value", [b"x", bytearray(b"x"), object(), 1j, range(3), Address, len])
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x], lambda x: {"a": x}, Holder])
def test_a_value_without_a_json_form_is_rejected_by_its_type(value, wrap):
    error = _encode_error(wrap(value))

    assert error.code == "22P02"
    assert type(value).__name__ in error.reason


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x], lambda x: {"a": x}, Holder])
def test_a_naive_datetime_is_rejected(wrap):
    error = _encode_error(wrap(datetime(2024, 1, 1)))

    assert error.code == "22007"
    assert "naive" in error.reason


@pytest.mark.parametrize("key", [1, None, True, 1.5, (1,), b"x"])
@pytest.mark.parametrize(
    "wrap", [lambda x: x, lambda x: [{"a": x}], lambda x: (x,), Holder, MappingProxyType]
)
def test_keys_that_are_not_text_are_rejected(key, wrap):
    error = _encode_error(wrap({key: 1}))

    assert error.code == "22P02"
    assert type(key).__name__ in error.reason


def test_keys_that_are_not_text_are_rejected_in_the_value_of_an_enum():
    assert _encode_error(Colour.NUMBERED).code == "22P02"


@pytest.mark.parametrize("kind", ["list", "dict", "tuple"])
@pytest.mark.parametrize("depth", [1, 100, MAX_DEPTH])
def test_nesting_up_to_the_limit_is_written(kind, depth):
    assert encode(_nested(kind, depth)) is not None


@pytest.mark.parametrize("kind", ["list", "dict", "tuple"])
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 1000, 5000])
def test_deeper_nesting_is_rejected_with_the_sqlstate_of_postgresql(kind, depth):
    assert _encode_error(_nested(kind, depth)).code == "54001"


def test_the_depth_limit_includes_values_that_become_objects():
    within = _nested("list", 300, inside=Holder(_nested("list", 300)))

    assert _encode_error(within).code == "54001"


def test_cycles_are_rejected():
    itself: list[object] = []
    itself.append(itself)
    holder = Holder(None)
    holder.value = holder
    mapping: dict[str, object] = {}
    mapping["inner"] = {"outer": mapping}

    for cycle in (itself, holder, mapping):
        assert _encode_error(cycle).code in ("54001", "22P02")


def test_a_value_that_occurs_twice_is_not_a_cycle():
    shared = [1]

    assert encode([shared, shared, Holder(shared)]) == '[[1],[1],{"value":[1]}]'


@pytest.mark.parametrize(
    ("payload", "size"), [("abc", 5), ("é", 4), ("😀", 6), ({"k": "ü"}, 10), ([], 2)]
)
def test_max_payload_bytes_counts_utf8_bytes(payload, size):
    assert encode(payload, max_bytes=size) is not None

    error = _encode_error(payload, max_bytes=size - 1)

    assert error.code == "54000"
    assert f"{size} bytes" in error.reason


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
def test_an_error_never_quotes_the_payload(payload):
    error = _encode_error(payload, max_bytes=3)

    assert SECRET not in str(error)
    assert SECRET not in repr(error)


def test_the_error_has_the_rejected_value():
    error = _encode_error({"a": {1: 2}})

    assert error.value == {1: 2}


def test_writing_does_not_change_the_payload():
    payload: Mapping[str, object] = {"a": (1, {2}), "b": Address("x")}

    encode(payload)

    assert payload == {"a": (1, {2}), "b": Address("x")}


def _encode_error(payload: object, max_bytes: int | None = None) -> JobSpecError:
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
