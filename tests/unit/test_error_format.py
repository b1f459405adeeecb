"""What is kept of an error."""

import pytest

from graphile_worker._support.error_format import (
    MAX_ERROR_BYTES,
    MAX_LINE_CHARS,
    format_error,
    format_error_line,
    make_printable,
)
from tests.support.fakes import UnprintableError
from tests.support.hostile import HOSTILE


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_the_first_line_is_a_summary_and_the_rest_the_traceback():
    text = format_error(raised(ValueError("no such\ninvoice")))

    assert text.splitlines()[0] == "ValueError: no such invoice"
    assert "test_error_format.py" in text
    assert "in raised" in text


def test_an_error_without_words_is_known_by_its_class():
    assert format_error(KeyError()).splitlines()[0] == "KeyError"


@pytest.mark.feature("F209")
@pytest.mark.parametrize("text", ["a\x00b", "a\ud800b"])
def test_what_postgresql_cannot_store_is_replaced(text):
    stored = format_error(ValueError(text))

    assert "\x00" not in stored
    stored.encode()


def test_an_error_whose_text_cannot_be_made_is_kept_all_the_same():
    first = format_error(raised(UnprintableError())).splitlines()[0]

    assert first == "UnprintableError: (its message raised RuntimeError)"


def test_a_huge_text_keeps_its_beginning_its_end_and_a_digest():
    text = format_error(ValueError("begin " + "é" * 10_000_000 + " end"))

    assert len(text.encode()) < MAX_ERROR_BYTES + 200
    assert text.startswith("ValueError: begin")
    assert " end" in text[-20:]
    assert "sha256" in text


def test_a_cause_that_causes_itself_ends():
    error = ValueError("round")
    error.__cause__ = error

    assert format_error(error).startswith("ValueError: round")


def test_control_characters_are_shown_as_escapes_and_all_others_stay():
    for each in HOSTILE:
        assert make_printable(f"a{each}b") == f"a{each.encode('unicode_escape').decode()}b"
    for text in ("", "plain", "a\tb", "é 😀 名前", "\u00a0\u200d\ufeff"):
        assert make_printable(text) == text


def test_the_line_of_an_error_ends_with_its_hints_and_without_other_notes():
    error = ValueError("no")
    error.add_note("of a library")
    error.add_note("hint: say yes")

    assert format_error_line(error) == "ValueError: no; hint: say yes"


def test_the_line_of_an_error_is_printable_and_short():
    line = format_error_line(ValueError(HOSTILE * 1000))

    assert line.isprintable()
    assert len(line) <= MAX_LINE_CHARS
