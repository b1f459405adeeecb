"""Tables: cut to the width of the terminal, aligned for letters of any width."""

import sys

from graphile_worker._cli.printing import print_table
from graphile_worker._cli.top.text import display_width


def test_a_long_error_is_cut_to_the_width_of_the_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    errors = ("x" * 500, "語" * 500, "a\tb" * 500, "短い", "-")

    print_table(("id", "error"), [(1, error) for error in errors], right_aligned="id")

    _, *lines = capsys.readouterr().out.splitlines()
    assert [display_width(line) for line in lines[:3]] in ([40, 39, 40], [40, 40, 40])
    assert [line[-1] for line in lines[:3]] == ["…"] * 3
    assert not any("\t" in line for line in lines)
    assert lines[3] == " 1  短い"


def test_columns_are_aligned_beside_wide_letters(capsys):
    print_table(("task", "error"), [("短い", "one"), ("long", "two")])

    _, wide, plain = capsys.readouterr().out.splitlines()
    assert (wide, plain) == ("短い  one", "long  two")


def test_without_a_terminal_lines_are_not_cut(capsys):
    print_table(("id", "error"), [(1, "x" * 500)], right_aligned="id")

    assert capsys.readouterr().out.count("x") == 500
