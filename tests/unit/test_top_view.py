"""The keys of the live view and what they change."""

from functools import reduce

import pytest

from graphile_worker._cli.top.view import Page, TaskSort, View, handle_key, read_keys


def press(*keys) -> View:
    return reduce(handle_key, keys, View())


def test_terminal_input_is_read_as_keys():
    assert read_keys("j\x1b[A\x1bOB\r\x7f\x1b[5~é") == [
        "j",
        "up",
        "down",
        "enter",
        "backspace",
        "page up",
        "é",
    ]


@pytest.mark.parametrize("unknown", ["\x1b[1;5C", "\x1b[200~", "\x1b[", "\x01", "\x1b[<0;1;1M"])
def test_unknown_keys_are_ignored(unknown):
    assert read_keys(unknown) == []
    assert read_keys(f"{unknown}q" if unknown != "\x1b[" else "q") == ["q"]


def test_escape_alone_is_a_key():
    assert read_keys("\x1b") == ["escape"]


@pytest.mark.parametrize("keys", [["q"], ["quit"], ["/", "quit"], ["?", "q"]])
def test_every_mode_can_be_quit(keys):
    assert press(*keys).is_closed


def test_number_keys_select_pages():
    assert [press(key).page for key in "123456"] == list(Page)


def test_p_pauses_and_resumes():
    assert press("p").is_paused
    assert not press("p", "p").is_paused


def test_s_cycles_through_the_sort_orders():
    assert [press(*"s" * n).sort for n in range(6)] == [*TaskSort, TaskSort.OLDEST]


def test_a_filter_can_be_typed_edited_kept_and_cleared():
    typed = press("/", *"qpx", "backspace")

    assert (typed.filter, typed.is_editing_filter, typed.is_closed) == ("qp", True, False)
    assert handle_key(typed, "enter").filter == "qp"
    assert handle_key(typed, "escape") == View()
    assert handle_key(handle_key(typed, "enter"), "escape").filter == ""


def test_any_key_closes_the_help():
    assert press("?").has_help
    assert press("?", "5") == View()


def test_the_cursor_never_moves_above_the_first_row():
    assert press("2", "k").cursor == 0
    assert press("2", "down", "page down", "k").cursor == 10
    assert press("2", "j", "3").cursor == 0
