"""Which rows of docs/contributing/features.md have a page and a test.

`python -m tools.features [part …]` prints those that lack one; `--page` writes the table of all,
docs/reference/features.md, from the comments of pages and the marks of tests.
"""

import ast
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.pages import DOCS, ROOT, headings, without_blocks
from tools.reference.tables import table

LISTING = DOCS / "contributing" / "features.md"
PAGE = DOCS / "reference" / "features.md"

COMMENT = re.compile(r"<!-- features:(.*?)-->", re.DOTALL)
ID = re.compile(r"\bF\d+\b")

HEADING = """# Features

What the five public documents describe that this project set out from, one row for each thing that
a user can see, set or rely on: what it is, its form here, the page that tells it and tests that
hold it. Which document each comes from: [the list](../contributing/features.md).

This page is written by `just features --page`, from comments in the pages and marks in the tests. A
link to a test leads to its file, and says its name in words.
"""

# So many tests of a row are named; the first say enough.
TESTS_SHOWN = 2

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Row:
    """One row of the listing."""

    id: str
    area: str
    feature: str
    form: str
    part: str


@dataclass(frozen=True)
class Place:
    """The section of a page that tells a feature."""

    page: Path
    title: str
    anchor: str

    def link(self) -> str:
        return f"[{self.title}]({_from_page(self.page)}{self.anchor})"


@dataclass(frozen=True, order=True)
class Test:
    """A test that holds a feature; its name is the rule."""

    __test__ = False

    path: Path
    line: int
    name: str

    def link(self) -> str:
        rule = self.name.removeprefix("test_").replace("_", " ")
        return f"[{rule}]({_from_page(self.path)})"


def main() -> None:
    rows, told, held = listed(), places(), holders()
    for what, found in (("pages", told), ("tests", held)):
        if unknown := found.keys() - {row.id for row in rows}:
            sys.exit(f"{what} name features that are not listed: {', '.join(sorted(unknown))}")
    if sys.argv[1:] == ["--page"]:
        PAGE.write_text(page(), encoding="utf-8")
        print(f"wrote {PAGE.relative_to(ROOT)}")
    else:
        _print_missing(rows, told.keys(), held.keys(), sys.argv[1:])


def _print_missing(
    rows: list[Row], told: Iterable[str], held: Iterable[str], parts: list[str]
) -> None:
    wanted = parts or sorted({row.part for row in rows})
    for row in rows:
        lacks = [what for what, has in (("page", told), ("test", held)) if row.id not in has]
        if row.part in wanted and lacks:
            print(f"{row.id:5} {row.part:11} no {' and no '.join(lacks)}: {row.feature[:90]}")
    total = Counter(row.part for row in rows)
    for what, has in (("told", told), ("tested", held)):
        done = Counter(row.part for row in rows if row.id in has)
        print(f"{what}:", ", ".join(f"{part} {done[part]} of {total[part]}" for part in wanted))


# The listing


def listed() -> list[Row]:
    """Every row of the listing, in its order."""
    rows, area = [], ""
    for line in LISTING.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            area = line.removeprefix("## ")
        elif line.startswith("| F"):
            row, feature, _, form, part = cells(line)
            rows.append(Row(row, area, feature, form, part))
    return rows


def cells(line: str) -> list[str]:
    """The cells of one line of a table; a bar with a backslash belongs to its cell."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


# The comments of pages


def places() -> dict[str, list[Place]]:
    """Where each feature is told."""
    found: dict[str, list[Place]] = {}
    for path in sources():
        for row, place in _places_of(path):
            if place not in found.setdefault(row, []):
                found[row].append(place)
    return found


def sources() -> list[Path]:
    """What a reader may be sent to: the pages, and what lies beside them."""
    beside = [*ROOT.glob("*.md"), *ROOT.glob("examples/**/*.md"), *ROOT.glob("deploy/**/*.md")]
    pages = [path for path in DOCS.rglob("*.md") if path not in (LISTING, PAGE)]
    return sorted([*pages, *beside])


def _places_of(path: Path) -> Iterator[tuple[str, Place]]:
    text = path.read_text(encoding="utf-8")
    sections = headings(text)
    for comment in COMMENT.finditer(without_blocks(text)):
        above = [each for each in sections if each.start < comment.start()]
        title, anchor = sections[0].text, ""
        if above and above[-1].level > 1:
            title, anchor = f"{title}: {above[-1].text}", f"#{above[-1].anchor}"
        yield from ((row, Place(path, title, anchor)) for row in ID.findall(comment[1]))


# The marks of tests


def holders() -> dict[str, list[Test]]:
    """The tests that hold each feature; first those that are marked by themselves."""
    found: dict[str, list[Test]] = {}
    files = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    modules = [_Module(path, text) for path, text in sorted(files.items()) if ".feature(" in text]
    for marks in ("own", "common"):
        for module in modules:
            for row, test in getattr(module, marks)():
                if test not in found.setdefault(row, []):
                    found[row].append(test)
    return found


class _Module:
    """One file of tests, and the marks in it."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._body = ast.parse(text).body

    def own(self) -> Iterator[tuple[str, Test]]:
        """Marks of single tests, in lists of their parameters too."""
        for function in self._tests():
            for decorator in function.decorator_list:
                yield from ((row, self._test(function)) for row in _ids(decorator))

    def common(self) -> Iterator[tuple[str, Test]]:
        """Marks of the module, and in values that parameters are taken from."""
        for node in self._body:
            if isinstance(node, ast.Assign | ast.AnnAssign):
                for row in _ids(node):
                    yield from ((row, self._test(each)) for each in self._using(node))

    def _using(self, node: ast.Assign | ast.AnnAssign) -> list[Function]:
        """The tests that take their parameters from what is assigned, or all that there are."""
        names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        return [each for each in self._tests() if names & _names(each)] or self._tests()

    def _tests(self) -> list[Function]:
        inside = [each.body for each in self._body if isinstance(each, ast.ClassDef)]
        found = [node for body in (self._body, *inside) for node in body]
        return [
            each for each in found if isinstance(each, Function) and each.name.startswith("test_")
        ]

    def _test(self, function: Function) -> Test:
        return Test(self._path, function.lineno, function.name)


def _names(function: Function) -> set[str]:
    walked = (node for each in function.decorator_list for node in ast.walk(each))
    return {node.id for node in walked if isinstance(node, ast.Name)} - {"pytest"}


def _ids(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Call) and _is_mark(each.func):
            yield from (str(ast.literal_eval(argument)) for argument in each.args)


def _is_mark(function: ast.expr) -> bool:
    return isinstance(function, ast.Attribute) and function.attr == "feature"


# The table of all


def page() -> str:
    """What docs/reference/features.md should hold."""
    rows, told, held = listed(), places(), holders()
    parts = [HEADING, f"{len(rows)} rows.\n"]
    for area in dict.fromkeys(row.area for row in rows):
        of_area = [row for row in rows if row.area == area]
        lines = [_line(row, told.get(row.id, []), held.get(row.id, [])) for row in of_area]
        head = ["id", "feature", "here", "told in", "tested by"]
        parts += [f"## {area}\n", table(head, lines)]
    return "\n".join(parts)


def _line(row: Row, told: list[Place], held: list[Test]) -> list[str]:
    pages = ", ".join(place.link() for place in told)
    tests = ", ".join(test.link() for test in held[:TESTS_SHOWN])
    return [row.id, row.feature, row.form, pages, tests]


def _from_page(path: Path) -> str:
    return Path(os.path.relpath(path, PAGE.parent)).as_posix()


if __name__ == "__main__":
    main()
