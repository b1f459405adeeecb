"""Every row of features.md has a page that tells it and a test that holds it, in one table."""

import pytest

from tools.features import PAGE, cells, holders, listed, page, places

pytestmark = pytest.mark.single_version

ROWS = {row.id: row for row in listed()}


def test_all_310_rows_are_read():
    assert [*ROWS] == [f"F{number}" for number in range(1, 311)]


def test_every_row_has_a_test():
    held = holders()

    assert [row for row in ROWS if row not in held] == []


def test_every_row_has_a_section_of_a_page_that_tells_it():
    told = places()

    assert [row for row in ROWS if row not in told] == []


@pytest.mark.parametrize("found", [holders, places])
def test_no_mark_and_no_comment_names_a_row_that_there_is_not(found):
    assert found().keys() - ROWS.keys() == set()


def test_the_table_of_all_is_what_would_be_written():
    assert PAGE.read_text(encoding="utf-8") == page(), "write it anew: just features --page"


def test_a_bar_with_a_backslash_belongs_to_its_cell():
    assert cells(r"| F1 | `a \| b` | c |") == ["F1", r"`a \| b`", "c"]
