"""Keys, and what they change of what is seen."""

from functools import reduce

import pytest

from graphile_worker._cli.top.keys import read_keys
from graphile_worker._cli.top.view import Key, ScreenPage, TaskSort, View, handle_key


def after(*keys) -> View:
    return reduce(handle_key, keys, View())


def test_bytes_of_a_terminal_are_read_as_keys():
    assert read_keys("j\x1b[A\x1bOB\r\x7f\x1b[5~é") == [
        "j",
        Key.UP,
        Key.DOWN,
        Key.ENTER,
        Key.BACKSPACE,
        Key.PAGE_UP,
        "é",
    ]


@pytest.mark.parametrize("unknown", ["\x1b[1;5C", "\x1b[200~", "\x1b[", "\x01", "\x1b[<0;1;1M"])
def test_a_key_that_nobody_knows_is_none(unknown):
    assert read_keys(unknown) == []
    assert read_keys(f"{unknown}q" if unknown != "\x1b[" else "q") == ["q"]


def test_escape_alone_is_a_key():
    assert read_keys("\x1b") == [Key.ESCAPE]


@pytest.mark.parametrize("keys", [["q"], [Key.QUIT], ["/", Key.QUIT], ["?", "q"]])
def test_one_can_always_leave(keys):
    assert after(*keys).is_closed


def test_pages_have_numbers():
    assert [after(key).page for key in "12345"] == list(ScreenPage)


def test_p_pauses_and_goes_on():
    assert after("p").is_paused
    assert not after("p", "p").is_paused


def test_s_goes_through_all_ways_to_sort():
    assert [after(*"s" * n).sort for n in range(6)] == [*TaskSort, TaskSort.OLDEST]


def test_a_filter_is_typed_letter_by_letter():
    typed = after("/", *"qpx", Key.BACKSPACE)

    assert (typed.filter, typed.is_editing_filter, typed.is_closed) == ("qp", True, False)
    assert handle_key(typed, Key.ENTER).filter == "qp"
    assert handle_key(typed, Key.ESCAPE) == View()
    assert handle_key(handle_key(typed, Key.ENTER), Key.ESCAPE).filter == ""


def test_any_key_ends_the_help():
    assert after("?").has_help
    assert after("?", "5") == View()


def test_the_cursor_stays_in_the_list():
    assert after("2", "k").cursor == 0
    assert after("2", Key.DOWN, Key.PAGE_DOWN, "k").cursor == 10
    assert after("2", "j", "3").cursor == 0
