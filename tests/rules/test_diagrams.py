"""The diagrams of the concepts and of the architecture: each page has one, and each is legible."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.pages import ROOT
from tools.diagrams.drawing import DARK, LIGHT, LINE, SIZE
from tools.diagrams.pictures import PICTURES

IMAGES = ROOT / "docs" / "images"
PAGES = [
    *sorted((ROOT / "docs" / "concepts").glob("*.md")),
    ROOT / "docs" / "contributing" / "architecture.md",
]
LINK = re.compile(r"!\[(.+?)\]\(\.\./images/(.+?)\.svg\)")
SVG = "{http://www.w3.org/2000/svg}"
RULE = re.compile(r"^\.(\w+) {", re.MULTILINE)

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
def test_each_page_has_a_diagram_of_its_name_and_describes_it_in_words(page: Path):
    [(words, name)] = LINK.findall(page.read_text(encoding="utf-8"))

    assert name == page.stem
    assert name in PICTURES
    assert len(words) > 80


def test_each_diagram_has_its_page():
    assert sorted(page.stem for page in PAGES) == sorted(PICTURES)


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


def test_text_can_be_read_on_a_phone(picture):
    width, _ = view_box(picture)

    assert SIZE * 700 / width >= 14
    assert SIZE * NARROWEST_SCREEN / width >= 10


def test_each_color_has_a_counterpart_on_dark_pages(picture):
    style = picture.findtext(f"{SVG}style") or ""
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    used = {each.attrib["class"] for each in picture.iter() if "class" in each.attrib}

    assert used <= set(RULE.findall(light))
    assert RULE.findall(light) == RULE.findall(dark)
    # A color outside of a class would be the same on both.
    assert {each.attrib.get("fill", "none") for each in picture.iter()} == {"none"}
    assert {each.attrib.get("stroke", "none") for each in picture.iter()} == {"none"}


@pytest.mark.parametrize("ground", ["panel", "plain", "good", "busy", "late", "bad", "area"])
@pytest.mark.parametrize("colors", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("text", ["ink", "pale"])
def test_text_has_enough_contrast(text, ground, colors):
    """The ratio that WCAG 2 asks for at level AA."""
    assert contrast(fill(colors[text]), fill(colors[ground])) >= 4.5


def fill(style: str) -> str:
    return style.split("fill: #")[1][:6]


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
