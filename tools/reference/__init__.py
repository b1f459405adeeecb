"""Write what pages under docs/reference say of the code: `python -m tools.reference`.

What stands between `<!-- generated: … -->` and `<!-- end -->` is written anew, all else is left as
it is.
The first word of such a comment says what is written, the others are what it is about.
"""

from pathlib import Path

from tools.pages import DOCS, filled
from tools.reference.commands import subcommands
from tools.reference.events import event_table
from tools.reference.python_api import name_table, stubs

KINDS = {"commands": subcommands, "events": event_table, "names": name_table, "python": stubs}


def pages() -> list[Path]:
    """The pages that have parts which are written from the code."""
    return [page for page in sorted(DOCS.rglob("*.md")) if "<!-- generated: " in page.read_text()]


def written(page: Path) -> str:
    """The whole page as it should be."""
    return filled(page.read_text(encoding="utf-8"), content)


def content(part: str) -> str:
    kind, _, about = part.partition(" ")
    return KINDS[kind](about)
