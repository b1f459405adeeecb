"""Build the documentation site from the repository: `python -m tools.site [folder]`.

The pages are those of docs/, the READMEs of examples/ and the texts at the top of the repository.
All of them also read well where they lie, so their links say where things lie there; here each link
is turned to where its target is on the site. A linked file that is no page becomes one, or is just
there if it is one of the tests.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent
SETTINGS = ROOT / "mkdocs.yml"
DEFAULT = ROOT / "dist" / "site"

# Where texts are on the site that lie elsewhere in the repository.
ELSEWHERE = {
    "CONTRIBUTING.md": "contributing/index.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
LANGUAGES = {
    ".json": "json",
    ".py": "python",
    ".service": "ini",
    ".sql": "sql",
    ".toml": "toml",
    ".ts": "typescript",
    ".yaml": "yaml",
}
# Copied as they are.
ASSETS = {".svg", ".png", ".css"}

# What is not shown: blocks that prepare or check others, and marks for our own tools.
COMMENT = re.compile(r"^<!--.*?-->\n", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")


def main() -> None:
    build(Path(sys.argv[1]) if sys.argv[1:] else DEFAULT)


def build(folder: Path) -> None:
    """Write the site into this folder; what was there is gone."""
    with TemporaryDirectory() as workshop:
        gather(Path(workshop) / "docs")
        shutil.copy(SETTINGS, workshop)
        shutil.rmtree(folder, ignore_errors=True)
        program = Path(sys.executable).parent / "zensical"
        subprocess.run([program, "build", "--strict"], cwd=workshop, check=True)
        shutil.copytree(Path(workshop) / "site", folder)


def gather(folder: Path) -> None:
    """Put every page into this folder, with its links turned, and what they link to."""
    waiting = [*texts(), ROOT / "docs" / "assets" / "site.css"]
    seen = set(waiting)
    while waiting:
        source = waiting.pop()
        for target in put(source, folder):
            if target not in seen:
                seen.add(target)
                waiting.append(target)


def texts() -> Iterator[Path]:
    """What is on the site whether or not somebody links to it."""
    yield from sorted((ROOT / "docs").rglob("*.md"))
    # Not deeper: an example that somebody runs here has its packages beside it.
    yield ROOT / "examples" / "README.md"
    yield from sorted((ROOT / "examples").glob("*/README.md"))
    yield from (ROOT / name for name in ELSEWHERE)


def put(source: Path, folder: Path) -> list[Path]:
    """Write one page or asset; says which files it links to."""
    place = folder / place_of(source)
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.suffix != ".md":
        shutil.copy(source, place)
        return []
    if source.suffix != ".md":
        place.write_text(as_page(source), encoding="utf-8")
        return []
    text, targets = turned(source.read_text(encoding="utf-8"), source)
    place.write_text(text, encoding="utf-8")
    return targets


def place_of(source: Path) -> str:
    """Where a file of the repository is on the site."""
    path = source.relative_to(ROOT).as_posix()
    if path in ELSEWHERE:
        return ELSEWHERE[path]
    if path.endswith("/README.md"):
        # One page for an example, and the first one of a folder of pages.
        is_example = path.count("/") == 2 and path.startswith("examples/")
        path = path.removesuffix("/README.md") + (".md" if is_example else "/index.md")
    path = path.removeprefix("docs/")
    if source.suffix in {".md", *ASSETS}:
        return path
    # Nobody wants to find the lines of tests by searching.
    return f"files/{path}{'.txt' if path.startswith('tests/') else '.md'}"


def turned(text: str, source: Path) -> tuple[str, list[Path]]:
    """The text of a page with its links turned and without comments, and the files it links to."""
    targets: list[Path] = []

    def turn(link: re.Match[str]) -> str:
        if "://" in link[2] or link[2].startswith("mailto:"):
            return link[0]
        target = meant(source.parent / link[2])
        targets.append(target)
        here = Path(place_of(source)).parent
        return f"{link[1]}{os.path.relpath(place_of(target), here)}{link[3] or ''}{link[4]}"

    parts = FENCED.split(COMMENT.sub("", text))
    # What stands between fences is code, and stays.
    prose = [LINK.sub(turn, part) if index % 2 == 0 else part for index, part in enumerate(parts)]
    return "".join(prose), targets


def meant(target: Path) -> Path:
    """The file that a link means: of a folder its README, of ours the first page."""
    target = Path(os.path.normpath(target))
    if target == ROOT / "README.md":
        return ROOT / "docs" / "index.md"
    return target / "README.md" if target.is_dir() else target


def as_page(source: Path) -> str:
    """A page that shows a file."""
    name = source.relative_to(ROOT).as_posix()
    language = LANGUAGES.get(source.suffix, "text")
    return f"# `{name}`\n\n````{language}\n{source.read_text(encoding='utf-8')}````\n"


if __name__ == "__main__":
    main()
