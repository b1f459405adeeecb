"""What the tables of a page say."""

import re

from tests.support.pages import ROOT
from tools.features import split_cells

CODE = re.compile(r"`([^`]+)`")


def section(page: str, heading: str) -> str:
    """What stands under a heading of the second level."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    parts = re.split(r"^## ", text, flags=re.MULTILINE)
    [found] = [part for part in parts if part.splitlines()[0] == heading]
    return found


def rows(text: str) -> list[list[str]]:
    """The cells of all tables in a text, without the heads of the tables."""
    found = [split_cells(line) for line in text.splitlines() if line.startswith("|")]
    heads = [index - 1 for index, row in enumerate(found) if set("".join(row)) == {"-"}]
    return [row for index, row in enumerate(found) if index not in heads and index - 1 not in heads]


def codes(cell: str) -> list[str]:
    """What stands in a cell as code."""
    return CODE.findall(cell)
