"""The pages under docs as text: their headings, and the parts that are written from the code."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"

FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^(#{1,6}) (.+)$", re.MULTILINE)
GENERATED = re.compile(r"^(<!-- generated: (.+?) -->\n)(.*?)^(<!-- end -->)$", re.M | re.S)


@dataclass(frozen=True)
class Heading:
    """One heading of a page, and where it begins."""

    level: int
    text: str
    start: int

    @property
    def anchor(self) -> str:
        """What a link to it ends with; GitHub and the site agree on that for plain headings."""
        kept = re.sub(r"[^\w\s-]", "", self.text.lower())
        return re.sub(r"[-\s]+", "-", kept).strip("-")


def headings(text: str) -> list[Heading]:
    """The headings of a page, without what looks like one in a block of code."""
    shown = without_blocks(text)
    return [Heading(len(found[1]), found[2], found.start()) for found in HEADING.finditer(shown)]


def without_blocks(text: str) -> str:
    """The text with blanks in place of its blocks of code, so that all else stays in its place."""
    return FENCE.sub(lambda block: re.sub(r"[^\n]", " ", block[0]), text)


def filled(text: str, content: Callable[[str], str]) -> str:
    """The page with each generated part as `content` says it should be."""
    return GENERATED.sub(lambda part: f"{part[1]}\n{content(part[2])}\n{part[4]}", text)


def parts(text: str) -> Iterator[str]:
    """The names of the generated parts of a page."""
    yield from (found[2] for found in GENERATED.finditer(text))
