"""The site that is built from the repository: its links lead somewhere, nothing is fetched."""

import re
from pathlib import Path

import pytest

from tests.site.built_site import Site, is_ours
from tests.support.pages import ROOT
from tools.site import LINK, get_site_path, list_texts, resolve_target

pytestmark = pytest.mark.single_version

HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def test_each_link_and_anchor_has_a_target(site: Site, figure):
    links = [*site.links()]
    figure(f"links and anchors of the site: {len(links)} on {len(site.pages)} pages")

    assert [each for each in links if not site.leads_somewhere(*each)] == []


def test_a_browser_fetches_nothing_from_elsewhere(site: Site):
    fetched = {each for page in site.pages.values() for each in page.fetched}

    assert {each for each in fetched if not is_ours(each)} == set()


def test_every_page_is_in_the_navigation():
    listed = re.findall(r"[:-] (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)

    assert sorted(listed) == sorted(get_site_path(each) for each in list_texts())


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
