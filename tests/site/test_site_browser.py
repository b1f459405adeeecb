"""The site in a real browser: layout on wide and narrow screens, colors, and search."""

import os
import re
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.site.built_site import Site
from tests.support.browser import chromium, served
from tests.support.tiers import size
from tools.diagrams.drawing import DARK, LIGHT

# The first of these tests to run builds the site.
pytestmark = pytest.mark.timeout(300)

LAYOUT = (Path(__file__).parent / "layout.js").read_text(encoding="utf-8")
SIZES = {"wide": (1280, 900), "narrow": (375, 800)}

# By what a reader searches for, the page that is meant.
MEANT = {
    "idempotent": "guides/idempotency.html",
    "permissions": "operations/permissions-and-security.html",
    "prometheus": "operations/monitoring.html",
    "keda": "operations/autoscaling.html",
    "schedule a job": "guides/scheduling-and-delays.html",
    "graceful shutdown": "operations/graceful-shutdown.html",
    "unique job": "guides/unique-jobs.html",
    "deduplicate": "guides/unique-jobs.html",
    "dead letter": "operations/dead-letters-and-retention.html",
    "monitoring": "operations/monitoring.html",
    "retry": "guides/retries-and-timeouts.html",
    "health check": "operations/health-checks.html",
    "cron": "guides/cron.html",
    "django": "get-started/django.html",
    "transaction": "guides/transactional-enqueueing.html",
    "result": "guides/results-and-history.html",
    "history": "guides/results-and-history.html",
    "progress": "guides/progress.html",
    "audit": "operations/audit.html",
}
SEARCH_MILLISECONDS = size(gate=30_000, nightly=3_000)

COLORED_PAGE = "concepts/job-lifecycle.html"
READ_PIXEL = """async (picture) => {
  const image = new Image();
  image.src = `data:image/png;base64,${picture}`;
  await image.decode();
  const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
  context.drawImage(image, 0, 0);
  const [red, green, blue] = context.getImageData(12, 12, 1, 1).data;
  return "#" + [red, green, blue].map((it) => it.toString(16).padStart(2, "0")).join("");
}"""

# A folder for pictures of every page, for those who want to look.
PICTURES = os.environ.get("GW_PICTURES")


def nearly_all(site: Site) -> list[str]:
    """Every page, but few of those that only show a file, which are all alike."""
    files = [name for name in site.names if name.startswith("files/")]
    return [name for name in site.names if name not in files[3:]]


def one_of_each_kind(site: Site) -> list[str]:
    """The first pages of a newcomer, and the longest page of each folder for users."""
    longest = [
        max(
            (name for name in site.names if name.startswith(f"{folder}/")),
            key=lambda name: (site.folder / name).stat().st_size,
        )
        for folder in ("concepts", "guides", "operations", "reference")
    ]
    return ["index.html", "get-started/quickstart.html", *longest]


PAGES = size(gate=one_of_each_kind, nightly=nearly_all)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def address(site: Site) -> Iterator[str]:
    with served(site.folder) as found:
        yield found


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open pages without their search, which would make each of them read the whole index."""
    opened: list[Page] = []

    def open_one(**options: Any) -> Page:
        page = browser.new_page(**options)
        page.route("**/search.json", lambda route: route.fulfill(json={"items": []}))
        opened.append(page)
        return page

    yield open_one
    for page in opened:
        page.close()


@pytest.mark.single_version
@pytest.mark.timeout(size(gate=300, nightly=1200))
def test_nothing_overlaps_and_code_can_be_read(open_page, address, site: Site, figure):
    page = open_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    asked: set[str] = set()
    page.on("request", lambda request: asked.add(request.url))

    wrong = {name: look(page, f"{address}/{name}") for name in PAGES(site)}

    figure(f"pages seen in Chromium, wide and narrow: {len(wrong)}")
    assert {name: found for name, found in wrong.items() if found} == {}
    assert complaints == []
    # Scripts may ask for what no page names.
    assert {each for each in asked if not each.startswith((address, "data:", "blob:"))} == set()


# Styles that draw a page badly, with what must be found.
BAD_STYLES = {
    "article pre { min-width: 2000px; overflow: visible }": "it is ",
    "article p { margin-top: -60px }": "lies over",
    "article pre code { font-size: 8px !important }": "is too small",
    "article p { width: 1200px; overflow: hidden }": "sticks out",
    "article td { word-break: break-all !important; max-width: 3em !important }": "is broken",
    "article td code { white-space: normal !important; word-break: break-all !important }": (
        "is broken"
    ),
}


@pytest.mark.single_version
def test_a_page_that_is_drawn_badly_is_found(open_page, address):
    page = open_page(viewport=dict(zip(("width", "height"), SIZES["narrow"], strict=True)))
    page.goto(f"{address}/reference/options.html")
    assert page.evaluate(LAYOUT) == []

    for style, complaint in BAD_STYLES.items():
        added = page.add_style_tag(content=style)
        assert any(complaint in each for each in page.evaluate(LAYOUT)), style
        added.evaluate("(element) => element.remove()")


@pytest.mark.single_version
def test_pictures_follow_the_system_and_the_switch_of_the_site(open_page, address):
    panels = {"light": LIGHT["panel"], "dark": DARK["panel"]}
    for system, other in (("light", "dark"), ("dark", "light")):
        page = open_page(color_scheme=system)
        page.goto(f"{address}/{COLORED_PAGE}")

        assert read_corner_color(page) in panels[system]
        page.locator(".md-header__option label:visible").click()
        page.wait_for_function(
            "(scheme) => getComputedStyle(document.body).colorScheme === scheme", arg=other
        )
        assert read_corner_color(page) in panels[other]


def read_corner_color(page: Page) -> str:
    """Return the color inside of the upper left corner of the first picture, as #rrggbb."""
    picture = page.locator("article img").first.screenshot()
    color: str = page.evaluate(READ_PIXEL, b64encode(picture).decode())
    return color


@pytest.mark.single_version
def test_search_finds_the_page_that_is_meant_first(browser, address, figure):
    page = browser.new_page()
    page.goto(f"{address}/index.html")
    page.locator(".md-search__button").click()

    wrong = {}
    for words, meant in MEANT.items():
        page.get_by_role("combobox").fill(words)
        first = page.get_by_role("option").first
        # Results of the previous words stay until those of these words are there.
        with suppress(AssertionError):
            expect(first).to_have_attribute(
                "href", re.compile(f"/{meant}[?]"), timeout=SEARCH_MILLISECONDS
            )
            continue
        wrong[words] = first.get_attribute("href", timeout=SEARCH_MILLISECONDS)

    figure(f"searches with the page meant first: {len(MEANT) - len(wrong)} of {len(MEANT)}")
    assert wrong == {}


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
