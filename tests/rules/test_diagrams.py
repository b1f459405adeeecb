"""The diagrams of the concepts and of the architecture: each page has one, and each is legible."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.pages import ROOT
from tools.diagrams.drawing import LINE, SIZE
from tools.diagrams.pictures import PICTURES

IMAGES = ROOT / "docs" / "images"
PAGES = [
    *sorted((ROOT / "docs" / "concepts").glob("*.md")),
    ROOT / "docs" / "contributing" / "architecture.md",
]
LINK = re.compile(r"!\[(.+?)\]\(\.\./images/(.+?)\.svg\)")
SVG = "{http://www.w3.org/2000/svg}"

# Of a letter, in sizes of its font: more than any common sans-serif font takes on average.
WIDEST = 0.62
NARROWEST_SCREEN = 360 - 2 * 16


@pytest.fixture(params=sorted(PICTURES))
def picture(request) -> ElementTree.Element:
    return ElementTree.parse(IMAGES / f"{request.param}.svg").getroot()


def view_box(picture: ElementTree.Element) -> tuple[float, float]:
    x, y, width, height = map(float, picture.attrib["viewBox"].split())
    assert (x, y) == (0, 0)
    return width, height


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_page_has_a_diagram_and_describes_it_in_words(page: Path):
    [(words, name)] = LINK.findall(page.read_text(encoding="utf-8"))

    assert name in PICTURES
    assert len(words) > 80


def test_each_diagram_has_its_page():
    linked = [LINK.findall(page.read_text(encoding="utf-8"))[0][1] for page in PAGES]

    assert sorted(linked) == sorted(PICTURES)


@pytest.mark.parametrize("name", sorted(PICTURES))
def test_a_diagram_is_what_its_program_draws(name: str):
    kept = (IMAGES / f"{name}.svg").read_text(encoding="utf-8")

    assert kept == PICTURES[name]().svg(), "draw it again: just diagrams"


def test_a_diagram_has_a_title_and_a_description(picture):
    for name in ("title", "desc"):
        [element] = picture.findall(f"{SVG}{name}")
        assert element.text


def test_no_text_leaves_the_picture(picture):
    width, height = view_box(picture)

    for element in picture.iter(f"{SVG}text"):
        left, right = extent(element)
        assert left > 0, element.text
        assert right < width, element.text
        assert LINE / 2 < float(element.attrib["y"]) < height - 4, element.text


def extent(element: ElementTree.Element) -> tuple[float, float]:
    """From where to where a text reaches, at most."""
    x, length = float(element.attrib["x"]), len(element.text or "") * SIZE * WIDEST
    before = {"start": 0.0, "middle": 0.5, "end": 1.0}[element.attrib["text-anchor"]]
    return x - before * length, x + (1 - before) * length


def test_text_can_be_read_on_a_phone_and_in_the_dark(picture):
    width, _ = view_box(picture)

    assert SIZE * 700 / width >= 14
    assert SIZE * NARROWEST_SCREEN / width >= 10
    # Its background, under all other shapes.
    ground = next(each for each in picture if each.tag == f"{SVG}rect")
    assert float(ground.attrib["width"]) > width - 4
    assert ground.attrib["fill"].startswith("#f")
