"""The maps in architecture.md: every module and every folder is on them, and nothing else."""

import re
from pathlib import Path

import pytest

from tests.support.pages import ROOT

PAGE = (ROOT / "docs/contributing/architecture.md").read_text(encoding="utf-8")
LINE = re.compile(r"^([│ ]*)[├└]── (\S+)")


def drawn(top: str) -> set[str]:
    """The paths that one map names; what is in parentheses is planned."""
    tree = PAGE.split(f"\n```\n{top}\n")[1].split("\n```")[0]
    above: list[str] = []
    found = set()
    for line in filter(None, map(LINE.match, tree.splitlines())):
        above = [*above[: len(line[1]) // 4], line[2]]
        if not line[2].startswith("("):
            found.add("".join(above))
    return found


def test_every_module_is_on_the_map():
    package = ROOT / "src/graphile_worker"
    told = drawn("src/graphile_worker/")
    # A folder of which nothing is shown stands for all that is in it.
    opened = {Path(path).parent for path in told if not path.endswith("/")}
    modules = {path.relative_to(package) for path in package.rglob("*.py")}
    shown = {str(path) for path in modules if path.parent in opened}

    inner = {path for path in shown if not path.endswith("/__init__.py")}

    assert sorted(path for path in told if not (package / path).exists()) == []
    assert sorted(inner - told) == []
    assert sorted(folders(package) - {path.partition("/")[0] for path in told}) == []


@pytest.mark.parametrize("top", ["tests/", "docs/"])
def test_every_folder_is_on_the_map(top):
    tree = PAGE.split(f"\n```\n{top}\n")[1].split("\n```")[0]

    assert {name for name in folders(ROOT / top) if f" {name}/" not in tree} == set()


def folders(path: Path) -> set[str]:
    return {each.name for each in path.iterdir() if each.is_dir() and each.name[0] not in "_."}
