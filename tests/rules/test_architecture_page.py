"""The architecture page names every package, every public module and every folder."""

import ast
import re

import pytest

from tests.support.pages import ROOT

PAGE = (ROOT / "docs/contributing/architecture.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "src/graphile_worker"
LAYERS = PAGE.split("## Five layers")[1].split("\n## ")[0]
MAX_LINES = 250


def test_the_page_is_short_enough_to_read():
    assert len(PAGE.splitlines()) <= MAX_LINES


def test_every_package_and_module_is_in_the_table_of_layers():
    rows = [row for row in LAYERS.splitlines() if row.startswith("|")]
    named = {name.rstrip("/") for row in rows for name in re.findall(r"`([\w/]+)`", row)}
    present = {path.stem for path in PACKAGE.iterdir() if path.name not in OUTSIDE}

    assert sorted(present - named) == []


OUTSIDE = {"__init__.py", "__main__.py", "__pycache__", "py.typed"}


def test_every_path_on_the_page_exists():
    paths = re.findall(r"`((?:_\w+|ops|tasks|docs|tests)/[\w/.-]+)`", PAGE)

    assert paths
    missing = [path for path in paths if not ((PACKAGE / path).exists() or (ROOT / path).exists())]
    assert missing == []


def test_the_first_line_of_every_module_describes_it():
    for path in sorted(PACKAGE.rglob("*.py")):
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path


@pytest.mark.parametrize("top", ["tests/", "docs/"])
def test_every_folder_is_on_the_map(top):
    tree = PAGE.split(f"\n{top}\n")[1].split("\n```")[0]
    folders = {each.name for each in (ROOT / top).iterdir() if each.is_dir()}

    missing = {name for name in folders if name[0] not in "_." and f" {name}/" not in tree}
    assert missing == set()
