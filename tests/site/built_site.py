"""A built site: its pages, what they link to, what they load."""

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

# Elements whose `src` or `href` a browser fetches without being asked.
FETCHING = {"script", "img", "iframe", "source", "video", "audio"}


@dataclass
class Page:
    """What one page names: anchors, links, and what a browser fetches for it."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)


class Site:
    """The pages in a folder, by their path there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._targets: dict[tuple[str, str], str | None] = {}

    @cached_property
    def names(self) -> list[str]:
        """The path of each page; to read the pages takes seconds."""
        paths = sorted(self.folder.rglob("*.html"))
        # The page for unknown addresses, with links from the root.
        return [
            path.relative_to(self.folder).as_posix() for path in paths if path.name != "404.html"
        ]

    @cached_property
    def pages(self) -> dict[str, Page]:
        return {name: _read(self.folder / name) for name in self.names}

    def links(self) -> Iterator[tuple[str, str]]:
        """Each page and link that stays on the site."""
        for name, page in self.pages.items():
            yield from ((name, link) for link in [*page.links, *page.fetched] if is_ours(link))

    def leads_somewhere(self, name: str, link: str) -> bool:
        """Is there a file where this link leads, and the anchor that it names?"""
        path, anchor = urldefrag(link)
        target = self._find(posixpath.dirname(name), path) if path else name
        if target is None:
            return False
        page = self.pages.get(target)
        return not anchor or (page is not None and unquote(anchor) in page.anchors)

    def _find(self, folder: str, path: str) -> str | None:
        """Return the file at this path, once for the links of all pages in a folder."""
        if (folder, path) not in self._targets:
            target = self.folder / folder / unquote(path)
            if target.is_dir():
                target /= "index.html"
            found = target.resolve().relative_to(self.folder.resolve()).as_posix()
            self._targets[folder, path] = found if target.is_file() else None
        return self._targets[folder, path]


def is_ours(link: str) -> bool:
    return not urlsplit(link).scheme and not link.startswith("//")


def _read(path: Path) -> Page:
    reader = _Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader.page


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value is not None}
        if "id" in given:
            self.page.anchors.add(given["id"])
        if tag in FETCHING and "src" in given:
            self.page.fetched.append(given["src"])
        elif tag == "link" and given.get("rel") not in {"canonical", "prev", "next"}:
            self.page.fetched.append(given["href"])
        elif tag == "a" and "href" in given:
            self.page.links.append(given["href"])
