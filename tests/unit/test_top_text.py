"""Text that fits its cells, whatever it holds."""

from hypothesis import given
from hypothesis import strategies as st

from graphile_worker._cli.top.text import (
    TextStyle,
    clip,
    clip_line,
    display_width,
    fit,
    line_width,
    make_line,
    render_ansi,
    sanitize,
    wrap_text,
)

anything = st.text(max_size=40)
cells = st.integers(0, 60)


def test_what_terminals_understand_is_shown_as_an_escape():
    assert sanitize("\x1b[2Jgone\r\n\x9b1m\u202eevil") == r"\x1b[2Jgone\r\n\x9b1m\u202eevil"


def test_what_terminals_disagree_about_is_left_out():
    family = "\N{MAN}\u200d\N{WOMAN}\ufe0f\u00ad"

    assert sanitize(family) == "\N{MAN}\N{WOMAN}"


def test_wide_letters_take_two_cells_and_accents_none():
    assert (display_width("ab"), display_width("名前"), display_width("e\u0301")) == (2, 4, 1)
    assert clip("名前名前", 5) == "名前…"
    assert fit("名", 4) + "|" == "名  |"
    assert fit("7", 3, align_right=True) == "  7"


@given(anything, cells)
def test_what_is_cut_fits(text, cells):
    assert display_width(clip(sanitize(text), cells)) <= cells


@given(anything, cells)
def test_what_is_fitted_takes_just_so_many_cells(text, cells):
    assert display_width(fit(sanitize(text), cells)) == cells


@given(st.lists(anything, max_size=4), cells)
def test_a_line_that_is_cut_fits(texts, cells):
    line = tuple((sanitize(text), TextStyle.PLAIN) for text in texts)

    assert line_width(clip_line(line, cells)) <= cells


@given(anything, st.integers(2, 60))
def test_what_is_wrapped_fits_and_loses_nothing(text, cells):
    lines = wrap_text(text, cells)

    assert all(display_width(line) <= cells for line in lines)
    assert "".join(lines).replace(" ", "") == sanitize(text).replace(" ", "")


def test_without_colours_only_weight_is_left():
    line = make_line("late", TextStyle.BAD)

    assert render_ansi(line, is_color_enabled=True) == "\x1b[1;31mlate\x1b[0m"
    assert render_ansi(line, is_color_enabled=False) == "\x1b[1mlate\x1b[0m"
    assert render_ansi(make_line("on", TextStyle.GOOD), is_color_enabled=False) == "on"
