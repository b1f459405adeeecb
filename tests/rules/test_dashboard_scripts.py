"""The scripts of the dashboard: as published, small, and nothing from elsewhere."""

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

from graphile_worker.contrib.dashboard._view import CHANGES, PAGES
from graphile_worker.ops.diagnostics.findings import Severity
from graphile_worker.ops.pools import PoolHealth
from graphile_worker.ops.queues import QueueState
from graphile_worker.ops.states import JobState
from tools import vendor

STATIC = vendor.FOLDER.parent
MAX_THIRD_PARTY_BYTES = 40_000
# A page must not need more to load than the data that it shows.
MAX_OWN_BYTES = 120_000

# What the content security policy forbids, or what would let text become markup.
FORBIDDEN = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|dangerouslySetInnerHTML|document\.write|\beval\("
    r"|new Function|\sstyle=\"|\son\w+=\""
)

ICON_NAME = re.compile(r'(?:\bicon=|\bicon: |\{Icon\} name=)"(\w+)"')


def list_own_scripts() -> list[Path]:
    return sorted((STATIC / "app").rglob("*.js"))


def find_addresses(text: str) -> Iterator[str]:
    # Namespaces of SVG are names, not addresses.
    return (each for each in re.findall(r"https?://[^\s\"'`]+", text) if "www.w3.org" not in each)


def test_vendored_scripts_are_as_published():
    assert list(vendor.find_differences()) == []


def test_vendored_scripts_are_at_most_40_kb_compressed():
    scripts = [path for path in vendor.FOLDER.iterdir() if path.suffix in (".js", ".css")]

    assert (
        sum(len(gzip.compress(path.read_bytes(), 9)) for path in scripts) <= MAX_THIRD_PARTY_BYTES
    )


def test_own_scripts_are_at_most_120_kb():
    assert sum(path.stat().st_size for path in list_own_scripts()) <= MAX_OWN_BYTES


def test_the_icons_that_scripts_name_are_in_the_file_of_icons():
    texts = [path.read_text("utf-8") for path in list_own_scripts()]
    named = {name for text in texts for name in ICON_NAME.findall(text)}
    icons = set(re.findall(r'<symbol id="(\w+)"', (STATIC / "icons.svg").read_text("utf-8")))

    assert len(named) > 10
    assert named | {*JobState, *PoolHealth, *QueueState, *Severity} <= icons


def test_scripts_render_each_kind_of_column_and_each_page():
    rich = (STATIC / "app" / "ui" / "rich.js").read_text("utf-8")
    names = set(
        re.findall(r"[{,] (\w+): |^  (\w+): ", rich.partition("KINDS = {")[2], re.MULTILINE)
    )
    kinds = {name for pair in names for name in pair}
    modules = {each.stem for each in (STATIC / "app" / "pages").iterdir()}
    icons = set(re.findall(r'<symbol id="(\w+)"', (STATIC / "icons.svg").read_text("utf-8")))

    for page in PAGES:
        assert {each.kind for each in page.columns} <= {*kinds, "actions"}, page.path
        assert {page.module, page.item_module} - {None} <= modules, page.path
        assert {page.path or "overview", page.icon} - {None} <= icons, page.path
    assert {each.icon for each in CHANGES.values()} - {None} <= icons
    assert len({each.key for each in PAGES}) == len(PAGES)


def test_own_scripts_fetch_nothing_from_elsewhere_and_make_no_markup_of_text():
    for path in [*list_own_scripts(), STATIC / "index.html", STATIC / "app.css"]:
        text = path.read_text("utf-8")
        assert list(find_addresses(text)) == [], path.name
        assert FORBIDDEN.findall(text) == [], path.name
