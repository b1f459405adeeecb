"""Write the parts of docs/reference that the code determines: `python -m tools.reference`.

The text between `<!-- generated: … -->` and `<!-- end -->` is replaced. The first word of the
comment is a key of KINDS, and the other words are passed to its function.
"""

from pathlib import Path

from tools.pages import DOCS, fill_parts
from tools.reference.commands import flag_table, subcommand_sections
from tools.reference.events import event_table
from tools.reference.metrics import metric_table
from tools.reference.options import option_table, setting_table
from tools.reference.python_index import name_list, sections

KINDS = {
    "commands": subcommand_sections,
    "events": event_table,
    "flags": flag_table,
    "metrics": metric_table,
    "names": name_list,
    "options": option_table,
    "python": sections,
    "settings": setting_table,
}


def list_pages() -> list[Path]:
    """Return the pages that have generated parts."""
    return [page for page in sorted(DOCS.rglob("*.md")) if "<!-- generated: " in page.read_text()]


def build_page(page: Path) -> str:
    """Return the whole page with its generated parts up to date."""
    return fill_parts(page.read_text(encoding="utf-8"), _build_part)


def _build_part(part: str) -> str:
    kind, _, arguments = part.partition(" ")
    return KINDS[kind](arguments)
