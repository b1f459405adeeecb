"""The pages under docs as text: their headings, and the parts that the code determines."""

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
    """One heading of a page, and the position where it begins."""

    level: int
    text: str
    start: int

    @property
    def anchor(self) -> str:
        """Return the anchor of a link. GitHub and the site agree on it for plain headings."""
        kept = re.sub(r"[^\w\s-]", "", self.text.lower())
        return re.sub(r"[-\s]+", "-", kept).strip("-")


def find_headings(text: str) -> list[Heading]:
    """Return the headings of a page, without lines of code blocks that look like one."""
    prose = mask_code_blocks(text)
    return [Heading(len(match[1]), match[2], match.start()) for match in HEADING.finditer(prose)]


def mask_code_blocks(text: str) -> str:
    """Replace code blocks by spaces, so that the other text keeps its position."""
    return FENCE.sub(lambda block: re.sub(r"[^\n]", " ", block[0]), text)


def fill_parts(text: str, build_part: Callable[[str], str]) -> str:
    """Return the page with the result of `build_part` in each generated part."""
    return GENERATED.sub(lambda part: f"{part[1]}\n{build_part(part[2])}\n{part[4]}", text)


def find_part_names(text: str) -> Iterator[str]:
    """Yield the names of the generated parts of a page."""
    yield from (match[2] for match in GENERATED.finditer(text))
