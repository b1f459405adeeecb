"""Check that each row of docs/contributing/features.md has a page and a test.

`python -m tools.features [part …]` prints the rows that lack one. `--page` writes the table of all
rows, docs/about/features.md, from the comments of pages and the marks of tests.
"""

import ast
import os
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.pages import DOCS, ROOT, find_headings, mask_code_blocks
from tools.reference.tables import table

LISTING = DOCS / "contributing" / "features.md"
PAGE = DOCS / "about" / "features.md"

COMMENT = re.compile(r"<!-- features:(.*?)-->", re.DOTALL)
ID = re.compile(r"\bF\d+\b")

HEADING = """# Features

Find the page and the tests of each feature. This project started from five public documents, and
each row is one thing of them that you can see, set or rely on: what it is, its form in this
package, the page that describes it and tests that check it. [The list](../contributing/features.md)
names the document of each row.

`just features --page` writes this page from comments in the pages and marks in the tests. A link to
a test leads to its file.
"""

# Tests that the table lists for a row.
MAX_TESTS_PER_ROW = 2

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
class Section:
    """The section of a page that describes a feature."""

    page: Path
    title: str
    anchor: str

    def link(self) -> str:
        return f"[{self.title}]({_get_relative_path(self.page)}{self.anchor})"


@dataclass(frozen=True, order=True)
class Test:
    """A test of a feature. Its name is the rule."""

    __test__ = False

    path: Path
    line: int
    name: str

    def link(self) -> str:
        rule = self.name.removeprefix("test_").replace("_", " ")
        return f"[{rule}]({_get_relative_path(self.path)})"


def main() -> None:
    rows, sections, tests = read_rows(), find_sections(), find_tests()
    for kind, ids in (("pages", sections.keys()), ("tests", tests.keys())):
        if unknown := ids - {row.id for row in rows}:
            sys.exit(f"{kind} name features that are not listed: {', '.join(sorted(unknown))}")
    if sys.argv[1:] == ["--page"]:
        PAGE.write_text(build_page(), encoding="utf-8")
        print(f"wrote {PAGE.relative_to(ROOT)}")
    else:
        _print_missing(rows, sections.keys(), tests.keys(), sys.argv[1:])


def _print_missing(
    rows: list[Row], documented: Collection[str], tested: Collection[str], parts: list[str]
) -> None:
    chosen = parts or sorted({row.part for row in rows})
    for row in rows:
        missing = [
            kind for kind, ids in (("page", documented), ("test", tested)) if row.id not in ids
        ]
        if row.part in chosen and missing:
            print(f"{row.id:5} {row.part:11} no {' and no '.join(missing)}: {row.feature[:90]}")
    total = Counter(row.part for row in rows)
    for label, ids in (("documented", documented), ("tested", tested)):
        done = Counter(row.part for row in rows if row.id in ids)
        print(f"{label}:", ", ".join(f"{part} {done[part]} of {total[part]}" for part in chosen))


# The listing


def read_rows() -> list[Row]:
    """Return the rows of the listing, in order."""
    rows, area = [], ""
    for line in LISTING.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            area = line.removeprefix("## ")
        elif line.startswith("| F"):
            row, feature, _, form, part = split_cells(line)
            rows.append(Row(row, area, feature, form, part))
    return rows


def split_cells(line: str) -> list[str]:
    """Return the cells of one line of a table. A bar after a backslash belongs to its cell."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


# The comments of pages


def find_sections() -> dict[str, list[Section]]:
    """Return the sections that describe each feature."""
    sections: dict[str, list[Section]] = {}
    for path in list_pages():
        for row, section in _find_page_sections(path):
            if section not in sections.setdefault(row, []):
                sections[row].append(section)
    return sections


def list_pages() -> list[Path]:
    """Return the pages, and the texts at the top of the repository and beside examples."""
    others = [*ROOT.glob("*.md"), *ROOT.glob("examples/**/*.md"), *ROOT.glob("deploy/**/*.md")]
    pages = [path for path in DOCS.rglob("*.md") if path not in (LISTING, PAGE)]
    return sorted([*pages, *others])


def _find_page_sections(path: Path) -> Iterator[tuple[str, Section]]:
    text = path.read_text(encoding="utf-8")
    headings = find_headings(text)
    for comment in COMMENT.finditer(mask_code_blocks(text)):
        above = [each for each in headings if each.start < comment.start()]
        title, anchor = headings[0].text, ""
        if above and above[-1].level > 1:
            title, anchor = f"{title}: {above[-1].text}", f"#{above[-1].anchor}"
        yield from ((row, Section(path, title, anchor)) for row in ID.findall(comment[1]))


# The marks of tests


def find_tests() -> dict[str, list[Test]]:
    """Return the tests of each feature, first those with their own mark."""
    tests: dict[str, list[Test]] = {}
    files = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    modules = [_Module(path, text) for path, text in sorted(files.items()) if ".feature(" in text]
    marked = [
        *(each for module in modules for each in module.find_test_marks()),
        *(each for module in modules for each in module.find_module_marks()),
    ]
    for row, test in marked:
        if test not in tests.setdefault(row, []):
            tests[row].append(test)
    return tests


class _Module:
    """One file of tests, and the marks in it."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._body = ast.parse(text).body

    def find_test_marks(self) -> Iterator[tuple[str, Test]]:
        """Yield the marks of single tests, also those in lists of their parameters."""
        for function in self._list_functions():
            for decorator in function.decorator_list:
                yield from ((row, self._build_test(function)) for row in _find_ids(decorator))

    def find_module_marks(self) -> Iterator[tuple[str, Test]]:
        """Yield the marks of the module, and those in values that parameters are taken from."""
        for node in self._body:
            if isinstance(node, ast.Assign | ast.AnnAssign):
                for row in _find_ids(node):
                    yield from ((row, self._build_test(each)) for each in self._find_users(node))

    def _find_users(self, node: ast.Assign | ast.AnnAssign) -> list[Function]:
        """Return the tests that take their parameters from an assigned value, or all tests."""
        names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        functions = self._list_functions()
        return [each for each in functions if names & _find_decorator_names(each)] or functions

    def _list_functions(self) -> list[Function]:
        class_bodies = [each.body for each in self._body if isinstance(each, ast.ClassDef)]
        nodes = [node for body in (self._body, *class_bodies) for node in body]
        return [
            each for each in nodes if isinstance(each, Function) and each.name.startswith("test_")
        ]

    def _build_test(self, function: Function) -> Test:
        return Test(self._path, function.lineno, function.name)


def _find_decorator_names(function: Function) -> set[str]:
    nodes = (node for each in function.decorator_list for node in ast.walk(each))
    return {node.id for node in nodes if isinstance(node, ast.Name)} - {"pytest"}


def _find_ids(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Call) and _is_mark(each.func):
            yield from (str(ast.literal_eval(argument)) for argument in each.args)


def _is_mark(function: ast.expr) -> bool:
    return isinstance(function, ast.Attribute) and function.attr == "feature"


# The table of all rows


def build_page() -> str:
    """Return the current text of docs/about/features.md."""
    rows, sections, tests = read_rows(), find_sections(), find_tests()
    parts = [HEADING, f"{len(rows)} rows.\n"]
    for area in dict.fromkeys(row.area for row in rows):
        area_rows = [row for row in rows if row.area == area]
        lines = [
            _build_line(row, sections.get(row.id, []), tests.get(row.id, [])) for row in area_rows
        ]
        head = ["id", "feature", "form", "described in", "tested by"]
        parts += [f"## {area}\n", table(head, lines)]
    return "\n".join(parts)


def _build_line(row: Row, sections: list[Section], tests: list[Test]) -> list[str]:
    section_links = ", ".join(section.link() for section in sections)
    test_links = ", ".join(test.link() for test in tests[:MAX_TESTS_PER_ROW])
    return [row.id, row.feature, row.form, section_links, test_links]


def _get_relative_path(path: Path) -> str:
    return Path(os.path.relpath(path, PAGE.parent)).as_posix()


if __name__ == "__main__":
    main()
