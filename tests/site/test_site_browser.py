"""The site as a reader sees it, in a real browser, on a wide screen and on a narrow one."""

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page

from tests.site.built_site import Site
from tests.support.browser import chromium, served
from tests.support.tiers import size

LAYOUT = (Path(__file__).parent / "layout.js").read_text(encoding="utf-8")
SIZES = {"wide": (1280, 900), "narrow": (375, 800)}

# A folder for pictures of every page, for those who want to look.
PICTURES = os.environ.get("GW_PICTURES")


def nearly_all(site: Site) -> list[str]:
    """Every page, but few of those that only show a file, which are all alike."""
    files = [name for name in site.pages if name.startswith("files/")]
    return [name for name in site.pages if name not in files[3:]]


def one_of_each_kind(site: Site) -> list[str]:
    """The first pages of a newcomer, and the longest page of each folder: 12 in all."""
    by_folder: dict[str, list[str]] = {}
    for name in site.pages:
        by_folder.setdefault(name.partition("/")[0] if "/" in name else "", []).append(name)
    by_folder.pop("")
    longest = [
        max(names, key=lambda name: (site.folder / name).stat().st_size)
        for names in by_folder.values()
    ]
    chosen = ["index.html", "quickstart.html", *sorted(longest)]
    more = [name for name in site.pages if name not in chosen and not name.startswith("files/")]
    return [*chosen, *more][:12]


PAGES = size(gate=one_of_each_kind, nightly=nearly_all)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def address(site: Site) -> Iterator[str]:
    with served(site.folder) as found:
        yield found


@pytest.mark.single_version
@pytest.mark.timeout(300)
def test_nothing_overlaps_and_code_can_be_read(browser, address, site: Site, figure):
    page = browser.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    # Each page would read the whole index, though no test searches here.
    page.route("**/search.json", lambda route: route.fulfill(json={"items": []}))
    asked: set[str] = set()
    page.on("request", lambda request: asked.add(request.url))

    wrong = {name: look(page, f"{address}/{name}") for name in PAGES(site)}

    figure(f"pages seen in Chromium, wide and narrow: {len(wrong)}")
    assert {name: found for name, found in wrong.items() if found} == {}
    assert complaints == []
    # Scripts may ask for what no page names.
    assert {each for each in asked if not each.startswith((address, "data:", "blob:"))} == set()


@pytest.mark.single_version
@pytest.mark.parametrize(
    ("style", "complaint"),
    [
        ("article pre { min-width: 2000px; overflow: visible }", "it is "),
        ("article p { margin-top: -60px }", "lies over"),
        ("article pre code { font-size: 8px !important }", "is too small"),
        ("article p { width: 1200px; overflow: hidden }", "sticks out"),
    ],
)
def test_a_page_that_is_drawn_badly_is_found(style, complaint, browser, address):
    page = browser.new_page(viewport=dict(zip(("width", "height"), SIZES["narrow"], strict=True)))
    page.goto(f"{address}/quickstart.html")

    page.add_style_tag(content=style)

    assert any(complaint in each for each in page.evaluate(LAYOUT))


def look(page: Page, address: str) -> list[str]:
    """What is wrong with a page, once it is drawn in each size."""
    page.goto(address)
    return [each for size in SIZES for each in look_at(page, size)]


def look_at(page: Page, size: str) -> list[str]:
    width, height = SIZES[size]
    page.set_viewport_size({"width": width, "height": height})
    if PICTURES:
        name = urlsplit(page.url).path.strip("/").replace("/", "-").removesuffix(".html")
        page.screenshot(path=Path(PICTURES) / f"{name}-{size}.png", full_page=True)
    return [f"{size}: {each}" for each in page.evaluate(LAYOUT)]
