"""Build llms.txt: the pages of the site with their first sentences, for language models."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

# A line that starts something else than a paragraph.
NO_PARAGRAPH = re.compile(r"[#<>|!]|[-*] |\d+\. ")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
SENTENCE = re.compile(r".+?[.!?](?=\s|$)")


@dataclass(frozen=True)
class Page:
    """A page of the navigation: its section, its title, and its path in docs/."""

    section: str
    title: str
    path: str

    @property
    def address(self) -> str:
        return self.path.removesuffix(".md") + ".html"


def list_pages(settings: str) -> list[Page]:
    """Return the pages of the navigation in mkdocs.yml, in order."""
    return list(_walk(yaml.safe_load(settings)["nav"], ()))


def _walk(entries: list[Any], sections: tuple[str, ...]) -> Iterator[Page]:
    for entry in entries:
        if isinstance(entry, str):
            yield Page(_name(sections[:1]), sections[-1], entry)
            continue
        for title, target in entry.items():
            if isinstance(target, str):
                yield Page(_name(sections[:1]), title, target)
            else:
                yield from _walk(target, (*sections, title))


def _name(sections: tuple[str, ...]) -> str:
    return sections[0] if sections else ""


def build_llms(settings: str, pages: list[Page], folder: Path) -> str:
    """Return llms.txt: the name, the summary, and these pages of this folder by section."""
    told = yaml.safe_load(settings)
    lines = [f"# {told['site_name']}", "", f"> {told['site_description']}."]
    section = None
    for page in pages:
        if page.section != section:
            section = page.section
            lines += ["", f"## {section}" if section else "## Start", ""]
        sentence = get_first_sentence((folder / page.path).read_text(encoding="utf-8"))
        lines.append(f"- [{page.title}]({page.address})" + (f": {sentence}" if sentence else ""))
    return "\n".join([*lines, ""])


def get_first_sentence(text: str) -> str:
    """Return the first sentence of the first paragraph, without links and emphasis."""
    paragraphs = [each.strip() for each in re.split(r"\n\s*\n", FENCED.sub("", text))]
    first = next((each for each in paragraphs if each and not NO_PARAGRAPH.match(each)), "")
    plain = LINK.sub(r"\1", " ".join(first.split())).replace("**", "")
    found = SENTENCE.match(plain)
    return found[0] if found else plain.removesuffix(":")
