"""Each row of features.md has a page and a test, in one table."""

from functools import cache

import pytest

from tools import features
from tools.features import PAGE, build_page, read_rows, split_cells

pytestmark = pytest.mark.single_version

ROWS = {row.id: row for row in read_rows()}

# They read all tests and all pages.
find_tests = cache(features.find_tests)
find_sections = cache(features.find_sections)


def test_all_310_rows_are_read():
    assert [*ROWS] == [f"F{number}" for number in range(1, 311)]


def test_every_row_has_a_test():
    tests = find_tests()

    assert [row for row in ROWS if row not in tests] == []


def test_each_feature_has_a_section_of_a_page():
    sections = find_sections()

    assert [row for row in ROWS if row not in sections] == []


@pytest.mark.parametrize("find", [find_tests, find_sections], ids=["tests", "sections"])
def test_each_feature_mark_names_an_existing_row(find):
    assert find().keys() - ROWS.keys() == set()


def test_the_generated_table_of_features_is_current():
    assert PAGE.read_text(encoding="utf-8") == build_page(), (
        "generate it again: just features --page"
    )


def test_a_bar_with_a_backslash_belongs_to_its_cell():
    assert split_cells(r"| F1 | `a \| b` | c |") == ["F1", r"`a \| b`", "c"]
