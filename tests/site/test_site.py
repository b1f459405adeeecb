"""The site that is built from the repository: pages, names, links, search index and llms.txt."""

import json
import re
from pathlib import Path

import pytest

from tests.site.built_site import Site, is_ours
from tests.support.pages import ROOT
from tools.llms import Page as NavigationPage
from tools.llms import get_first_sentence, list_pages
from tools.reference.class_pages import insert_navigation
from tools.search_index import EXCLUDED, KEYWORDS, add_keywords, get_page
from tools.site import (
    ADMONITIONS,
    LINK,
    SETTINGS,
    convert_alerts,
    get_site_path,
    list_texts,
    resolve_target,
)

pytestmark = pytest.mark.single_version

HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)

NAVIGATION = list_pages(SETTINGS.read_text(encoding="utf-8"))
PATHS = [page.path for page in NAVIGATION]
# First pages of folders and decisions have no label in the navigation.
NAMED_PAGES = [
    page
    for page in NAVIGATION
    if not page.path.endswith("index.md") and not page.path.startswith("contributing/decisions/")
]
# These files have the names that readers of a repository expect.
NAMED_FILES = [
    page
    for page in NAMED_PAGES
    if page.path not in {"changelog.md", "security.md"}
    and not page.path.startswith("contributing/")
]


def test_each_link_and_anchor_has_a_target(site: Site, figure):
    links = [*site.links()]
    figure(f"links and anchors of the site: {len(links)} on {len(site.pages)} pages")

    assert [each for each in links if not site.leads_somewhere(*each)] == []


def test_a_browser_fetches_nothing_from_elsewhere(site: Site):
    fetched = {each for page in site.pages.values() for each in page.fetched}

    assert {each for each in fetched if not is_ours(each)} == set()


def test_every_page_is_in_the_navigation():
    """Except for the examples, which other pages link to."""
    texts = [get_site_path(each) for each in list_texts()]

    assert sorted(PATHS) == sorted(each for each in texts if not each.startswith("examples/"))


@pytest.mark.parametrize("page", NAMED_PAGES, ids=lambda page: page.path)
def test_a_page_has_one_name_in_the_navigation_and_in_its_heading(page: NavigationPage):
    migration = f"{page.section} {page.title}" if page.section == "Migrate from" else page.title

    assert read_heading(page.path) in {page.title, migration}


@pytest.mark.parametrize("page", NAMED_FILES, ids=lambda page: page.path)
def test_a_page_has_one_name_in_the_navigation_and_in_its_file(page: NavigationPage):
    """Without what is in parentheses."""
    words = re.sub(r" \(.*\)", "", page.title).lower()

    assert Path(page.path).stem == words.replace(" ", "-")


def read_heading(path: str) -> str:
    [source] = [each for each in list_texts() if get_site_path(each) == path]
    return source.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def test_each_linked_picture_follows_the_color_scheme_of_the_page(site: Site):
    """A terminal is dark on any page, and the logo has its own background."""
    pictures = [each for each in site.folder.rglob("*.svg") if each.stem not in {"top", "logo"}]

    assert pictures
    for each in pictures:
        assert "@media (prefers-color-scheme: dark)" in each.read_text(encoding="utf-8"), each.name


def test_an_alert_becomes_an_admonition():
    text = (
        "Before.\n\n> [!WARNING]\n> Two\n> lines.\n>\n> ```sh\n> ls\n> ```\n\nAfter.\n\n"
        "- item\n\n  > [!CAUTION]\n  > Inside.\n\n> A quotation.\n\n"
        "```text\n> [!NOTE]\n> Code.\n```\n"
    )

    assert convert_alerts(text) == (
        "Before.\n\n!!! warning\n\n    Two\n    lines.\n\n    ```sh\n    ls\n    ```\n\nAfter.\n\n"
        '- item\n\n  !!! danger "Caution"\n\n      Inside.\n\n> A quotation.\n\n'
        "```text\n> [!NOTE]\n> Code.\n```\n"
    )


@pytest.mark.parametrize("kind", ADMONITIONS)
def test_every_kind_of_alert_has_an_admonition(kind):
    assert convert_alerts(f"> [!{kind}]\n> Text.").startswith("!!! ")


def test_no_alert_is_left_on_a_page(site: Site):
    pages = [page for page in site.names if not page.startswith("files/")]

    assert [page for page in pages if "<p>[!" in (site.folder / page).read_text("utf-8")] == []


def test_search_finds_pages_of_the_navigation_without_those_for_maintainers(site: Site):
    items = json.loads((site.folder / "search.json").read_text(encoding="utf-8"))["items"]
    found = {get_page(item) for item in items}
    addresses = {page.address for page in list_pages(insert_navigation(SETTINGS.read_text()))}

    assert found == {each for each in addresses if not each.startswith(EXCLUDED)}
    assert KEYWORDS.keys() <= found


def test_keywords_are_in_the_index_and_not_shown():
    item = {"location": "guides/cron.html", "title": "Cron", "path": ["Guides", "Cron"]}

    changed = add_keywords(item)

    hidden = '<span style="display: none">cron recurring periodic crontab </span>'
    assert changed["title"] == f"{hidden}Cron"
    assert changed["path"] == [f"{hidden}Guides", "Cron"]
    section = {**item, "location": "guides/cron.html#time-zones"}
    assert add_keywords(section) == section


def test_llms_txt_lists_each_page_with_its_first_sentence(site: Site):
    text = (site.folder / "llms.txt").read_text(encoding="utf-8")
    listed = re.findall(r"^- \[.+?\]\((.+?)\)(: .+)?$", text, re.MULTILINE)

    assert text.startswith("# Graphile Worker for Python\n\n> ")
    assert all((site.folder / address).is_file() for address, _ in listed)
    written = {page.address for page in NAVIGATION if not page.address.startswith(EXCLUDED)}
    assert {address for address, sentence in listed if sentence} >= written


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ("# T\n\n```sh\nls\n```\n\nOne. Two.\n", "One."),
        ("# T\n\n`ls` lists **files**\nof a [folder](a.md), e.g. this.\n", "`ls` lists files of a"),
        ("# T\n\n- item\n\n!!! note\n\nList:\n", "List"),
        ("# T\n", ""),
    ],
)
def test_the_first_sentence_of_a_page(page, sentence):
    assert get_first_sentence(page).startswith(sentence)
    assert bool(get_first_sentence(page)) == bool(sentence)


def test_each_link_works_in_the_repository_too():
    """A reader of the repository, without the site, finds the same."""
    broken = [
        f"{page.relative_to(ROOT)}: {link}#{anchor}"
        for page in [*list_texts(), ROOT / "README.md"]
        for link, anchor in links_of(page.read_text(encoding="utf-8"))
        if not is_there(page, link, anchor)
    ]

    assert broken == []


def links_of(text: str) -> list[tuple[str, str]]:
    inner = [("", anchor) for anchor in re.findall(r"\]\(#([^)\s]+)\)", FENCED.sub("", text))]
    outer = [(match[2], (match[3] or "#")[1:]) for match in LINK.finditer(FENCED.sub("", text))]
    return inner + [each for each in outer if "://" not in each[0]]


def is_there(page: Path, link: str, anchor: str) -> bool:
    target = resolve_target(page.parent / link) if link else page
    if not target.is_file():
        return False
    return not anchor or anchor in anchors_of(target.read_text(encoding="utf-8"))


def anchors_of(text: str) -> set[str]:
    """As the places name them that show a repository."""
    headings = HEADING.findall(FENCED.sub("", text))
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", each).replace("`", "") for each in headings]
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in plain}
