"""`_decode_json` is faster than `json.loads` and reads and rejects the same texts."""

import json
from typing import Any

import pytest
from hypothesis import given
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
    """Return the result as text: NaN equals NaN, 1 differs from 1.0, the order of keys counts."""
    try:
        return repr(read(text))
    except (RecursionError, ValueError):
        return "rejected"


def check_same_outcome(text: str) -> None:
    assert outcome(_decode_json, text) == outcome(json.loads, text)


@given(JSON, SPACE, SPACE, st.sampled_from([None, 2, "\t"]))
def test_a_payload_is_read_as_json_loads_reads_it(value, before, after, indent):
    check_same_outcome(before + json.dumps(value, indent=indent) + after)


@given(JSON)
def test_text_beyond_ascii_is_read_as_json_loads_reads_it(value):
    check_same_outcome(json.dumps(value, ensure_ascii=False))


@given(JSON, st.text(max_size=3), st.text(max_size=3))
def test_text_around_a_payload_is_read_or_rejected_as_by_json_loads(value, before, after):
    check_same_outcome(before + json.dumps(value) + after)


@given(JSON, st.data())
def test_a_truncated_payload_is_read_or_rejected_as_by_json_loads(value, data):
    text = json.dumps(value)

    check_same_outcome(text[: data.draw(st.integers(0, len(text)))])


@given(st.text() | ALMOST)
def test_any_text_is_read_or_rejected_as_by_json_loads(text):
    check_same_outcome(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        '{"a": 1, "a": 2}',
        "NaN",
        "[NaN, Infinity, -Infinity]",
        "-0",
        "-0.0",
        "1e999",
        "1" * 4300,
        "1" * 4301,
        "01",
        "1 2",
        "[1,]",
        '"\\ud800"',
        '"\n"',
        "\ufeff{}",
        "\u00a0{}",
        "[" * 100_000,
        '{"a":' * 100_000,
    ],
    ids=lambda text: ascii(text[:9]),
)
def test_edge_cases_are_read_or_rejected_as_by_json_loads(text):
    check_same_outcome(text)


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "{} {}", "[1,]", "1" * 5000, "[" * 100_000, '{"a":' * 100_000],
    ids=lambda text: text[:9] or "nothing",
)
def test_an_unreadable_payload_raises_value_error(text):
    with pytest.raises(ValueError):  # noqa: PT011 -- each reader words it differently
        _ = make_job(payload_text=text).payload


@pytest.mark.parametrize("text", ["nonsense", "{} {}", '{"a": 1,}', '{"a" 1}', '["a'])
def test_the_error_message_is_that_of_json_loads(text):
    with pytest.raises(json.JSONDecodeError) as expected:
        json.loads(text)

    with pytest.raises(json.JSONDecodeError) as found:
        _decode_json(text)

    assert str(found.value) == str(expected.value)


def test_the_last_of_duplicate_keys_wins():
    assert _decode_json('{"a": 1, "b": 2, "a": 3}') == {"a": 3, "b": 2}
