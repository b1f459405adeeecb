"""Photograph every picture of the documentation: `python -m tools.pictures FOLDER [NAME …]`.

Each SVG of docs/ becomes two PNG files, to be looked at: one at its own width and one 400 pixels
wide. Both show the picture on a light page, and beside it on a dark one.
"""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from playwright.sync_api import Browser

from tests.support.browser import chromium, served

DOCS = Path(__file__).parent.parent / "docs"
FOLDERS = [DOCS / "images", DOCS / "assets"]

# The width of the text on the site, and of a phone.
WIDTHS = {"": 820, "-400": 400}
# The schemes of the site and their backgrounds.
BACKGROUNDS = {"light": "#ffffff", "dark": "#0e0e10"}
PANEL = """<div style="color-scheme: {scheme}; background: {background}; width: {width}px">
<img src="{source}" style="max-width: 100%; display: block; margin: auto"></div>"""


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    names = sys.argv[2:]
    for path in photograph((each for each in list_pictures() if is_wanted(each, names)), folder):
        print(path)


def is_wanted(picture: Path, names: list[str]) -> bool:
    return not names or picture.stem in names


def list_pictures() -> list[Path]:
    return sorted(path for folder in FOLDERS for path in folder.glob("*.svg"))


def photograph(pictures: Iterable[Path], folder: Path) -> Iterator[Path]:
    """Write the PNG files of each picture, and yield their paths."""
    with chromium() as browser, served(DOCS) as address:
        for picture in pictures:
            source = f"{address}/{picture.relative_to(DOCS).as_posix()}"
            for suffix, width in WIDTHS.items():
                target = folder / f"{picture.stem}{suffix}.png"
                photograph_one(browser, source, width, target)
                yield target


def photograph_one(browser: Browser, source: str, width: int, target: Path) -> None:
    # The system is light: the page alone decides, as the switch of the site does.
    page = browser.new_page(viewport={"width": 2 * width, "height": 100}, color_scheme="light")
    panels = [
        PANEL.format(scheme=scheme, background=background, width=width, source=source)
        for scheme, background in BACKGROUNDS.items()
    ]
    page.set_content(
        f'<!doctype html><body style="margin: 0; display: flex">{"".join(panels)}</body>'
    )
    page.wait_for_function("[...document.images].every((image) => image.complete)")
    page.screenshot(path=target, full_page=True)
    page.close()


if __name__ == "__main__":
    main()
