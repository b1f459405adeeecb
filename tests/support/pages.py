"""The code blocks of README and docs."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
KINDS = ("python", "sql", "console")
FENCE = re.compile(r"^```(python|sql|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MIGRATED = "<!-- database: migrated -->"


@dataclass(frozen=True)
class Block:
    """One block of a page; those in comments prepare the others and are not shown."""

    kind: str
    text: str
    line: int


def pages() -> list[Path]:
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in found if blocks(page)]


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(match[1], match[2], text.count("\n", 0, match.start()) + 1)
        for match in FENCE.finditer(text)
    ]


def wants_schema(page: Path) -> bool:
    return MIGRATED in page.read_text()


def counts(pages: Iterable[Path]) -> Counter[str]:
    return Counter(block.kind for page in pages for block in blocks(page))
