"""Payloads are read by a shorter way than `json.loads`: nobody must see the difference."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from graphile_worker.jobs import _decode_json
from tests.support.jobs import make_job

SPACE = st.text(" \t\n\r", max_size=3)
NUMBERS = st.integers() | st.floats() | st.just(10**400)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
# Texts that are almost JSON.
ALMOST = st.text('[]{}",:.-+eE0123456789 \t\n\r\ufeff\\utrfalsnNIy', max_size=30)


def outcome(read: Any, text: str) -> str:
    """What comes of it; NaN is like NaN, 1 not like 1.0, and the order of keys counts."""
    try:
        return repr(read(text))
    except RecursionError:
        return "refused"
    except ValueError:
        return "refused"


def same(text: str) -> None:
    assert outcome(_decode_json, text) == outcome(json.loads, text)


@given(JSON, SPACE, SPACE, st.sampled_from([None, 2, "\t"]))
def test_a_payload_is_read_as_json_loads_reads_it(value, before, after, indent):
    same(before + json.dumps(value, indent=indent) + after)


@given(JSON)
def test_letters_beyond_ascii_are_read_alike(value):
    same(json.dumps(value, ensure_ascii=False))


@given(JSON, st.text(max_size=3), st.text(max_size=3))
def test_a_payload_with_anything_around_it_is_read_or_refused_alike(value, before, after):
    same(before + json.dumps(value) + after)


@given(JSON, st.data())
def test_a_payload_that_is_cut_short_is_read_or_refused_alike(value, data):
    text = json.dumps(value)

    same(text[: data.draw(st.integers(0, len(text)))])


@given(st.text() | ALMOST)
@example("")
@example(" ")
@example('{"a": 1, "a": 2}')
@example("NaN")
@example("[NaN, Infinity, -Infinity]")
@example("-0")
@example("-0.0")
@example("1e999")
@example("1" * 4300)
@example("1" * 4301)
@example("01")
@example("1 2")
@example("[1,]")
@example('"\\ud800"')
@example('"\n"')
@example("\ufeff{}")
@example("\u00a0{}")
@example("[" * 100_000)
@example('{"a":' * 100_000)
def test_any_text_is_read_or_refused_alike(text):
    same(text)


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "{} {}", "[1,]", "1" * 5000, "[" * 100_000, '{"a":' * 100_000],
    ids=lambda text: text[:9] or "nothing",
)
def test_what_cannot_be_read_is_a_value_error(text):
    with pytest.raises(ValueError):  # noqa: PT011 -- each reader words it differently
        _ = make_job(payload_text=text).payload


@pytest.mark.parametrize("text", ["nonsense", "{} {}", '{"a": 1,}', '{"a" 1}', '["a'])
def test_the_error_says_what_json_loads_says(text):
    with pytest.raises(json.JSONDecodeError) as expected:
        json.loads(text)

    with pytest.raises(json.JSONDecodeError) as found:
        _decode_json(text)

    assert str(found.value) == str(expected.value)


def test_of_a_key_that_is_there_twice_the_last_one_counts():
    assert _decode_json('{"a": 1, "b": 2, "a": 3}') == {"a": 3, "b": 2}
