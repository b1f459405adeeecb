"""Text on a terminal: sanitized, measured, cut, padded and wrapped."""

from hypothesis import given
from hypothesis import strategies as st

from graphile_worker._cli.top.text import (
    BAD,
    GOOD,
    PLAIN,
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


def test_control_characters_are_shown_escaped():
    assert sanitize("\x1b[2Jgone\r\n\x9b1m\u202eevil") == r"\x1b[2Jgone\r\n\x9b1m\u202eevil"


def test_characters_of_unclear_width_are_removed():
    family = "\N{MAN}\u200d\N{WOMAN}\ufe0f\u00ad"

    assert sanitize(family) == "\N{MAN}\N{WOMAN}"


def test_wide_characters_take_two_cells_and_combining_ones_none():
    assert (display_width("ab"), display_width("名前"), display_width("e\u0301")) == (2, 4, 1)
    assert clip("名前名前", 5) == "名前…"
    assert fit("名", 4) + "|" == "名  |"
    assert fit("7", 3, align_right=True) == "  7"


@given(anything, cells)
def test_clipped_text_fits(text, cells):
    assert display_width(clip(sanitize(text), cells)) <= cells


@given(anything, cells)
def test_fitted_text_takes_exactly_the_given_cells(text, cells):
    assert display_width(fit(sanitize(text), cells)) == cells


@given(st.lists(anything, max_size=4), cells)
def test_a_clipped_line_fits(texts, cells):
    line = tuple((sanitize(text), PLAIN) for text in texts)

    assert line_width(clip_line(line, cells)) <= cells


@given(anything, st.integers(2, 60))
def test_wrapped_text_fits_and_loses_nothing(text, cells):
    lines = wrap_text(text, cells)

    assert all(display_width(line) <= cells for line in lines)
    assert "".join(lines).replace(" ", "") == sanitize(text).replace(" ", "")


def test_without_colors_only_weight_remains():
    line = make_line("late", BAD)

    assert render_ansi(line, is_color_enabled=True) == "\x1b[1;31mlate\x1b[0m"
    assert render_ansi(line, is_color_enabled=False) == "\x1b[1mlate\x1b[0m"
    assert render_ansi(make_line("on", GOOD), is_color_enabled=False) == "on"
