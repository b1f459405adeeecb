"""Which rows of docs/contributing/features.md have a test: `python -m tools.features [part]`."""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
LISTING = ROOT / "docs" / "contributing" / "features.md"
ROW = re.compile(r"^\| (F\d+) \| (.+?) \|.*\| ([a-z ]+) \|$")


def main() -> None:
    rows = list(listed())
    held = set(tested())
    unknown = held - {row for row, _, _ in rows}
    if unknown:
        sys.exit(f"tests name features that are not listed: {', '.join(sorted(unknown))}")
    wanted = sys.argv[1:] or sorted({part for _, _, part in rows})
    for row, title, part in rows:
        if part in wanted and row not in held:
            print(f"{row:5} {part:11} {title[:100]}")
    done = Counter(part for row, _, part in rows if row in held)
    total = Counter(part for _, _, part in rows)
    print(", ".join(f"{part}: {done[part]} of {total[part]}" for part in wanted))


def listed() -> Iterator[tuple[str, str, str]]:
    """Every row of the listing: id, title, part."""
    for line in LISTING.read_text().splitlines():
        if match := ROW.match(line):
            yield match[1], match[2], match[3]


def tested() -> Iterator[str]:
    """The ids in the `feature` marks of all tests."""
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and _is_mark(node.func):
                yield from (str(ast.literal_eval(argument)) for argument in node.args)


def _is_mark(function: ast.expr) -> bool:
    return isinstance(function, ast.Attribute) and function.attr == "feature"


if __name__ == "__main__":
    main()
