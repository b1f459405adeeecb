"""Build the documentation site from the repository: `python -m tools.site [folder]`.

The pages are those of docs/, the READMEs of examples/ and the texts at the top of the repository.
Their links are relative to the repository, so that they also work there. The build converts each
link to the path of its target on the site. A linked file that is not a page becomes one. A linked
test is copied as text. Alerts of GitHub become admonitions.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.llms import build_llms, list_pages
from tools.reference.class_pages import insert_navigation, write_class_pages
from tools.search_index import is_searchable, tune_search_index

ROOT = Path(__file__).parent.parent
SETTINGS = ROOT / "mkdocs.yml"
DEFAULT = ROOT / "dist" / "site"

# Texts outside docs/, and their paths on the site.
SITE_PATHS = {
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
# Suffixes of files that are copied unchanged.
ASSETS = {".svg", ".png", ".css"}

# Pages with a table that needs the whole width: shown without the columns at their sides.
WIDE_PAGES = {"get-started/comparison.md"}
WIDE = "---\nhide:\n  - navigation\n  - toc\n---\n\n"

# Comments are removed: they contain code that prepares or checks examples, and marks for tools.
COMMENT = re.compile(r"^<!--.*?-->\n", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")

# An alert of GitHub, and the admonition that it becomes.
ALERT = re.compile(r"^( *)> \[!(\w+)\]\n((?:\1>.*(?:\n|\Z))*)", re.MULTILINE)
ADMONITIONS = {
    "NOTE": "note",
    "TIP": "tip",
    "IMPORTANT": 'info "Important"',
    "WARNING": "warning",
    "CAUTION": 'danger "Caution"',
}


def main() -> None:
    build(Path(sys.argv[1]) if sys.argv[1:] else DEFAULT)


def build(folder: Path) -> None:
    """Write the site into this folder, in place of its previous content."""
    with TemporaryDirectory() as workspace:
        collect_pages(Path(workspace) / "docs")
        settings = insert_navigation(SETTINGS.read_text(encoding="utf-8"))
        (Path(workspace) / SETTINGS.name).write_text(settings, encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        program = Path(sys.executable).parent / "zensical"
        subprocess.run([program, "build", "--strict"], cwd=workspace, check=True)
        add_indexes(Path(workspace), settings)
        shutil.copytree(Path(workspace) / "site", folder)


def add_indexes(workspace: Path, settings: str) -> None:
    """Tune the search index and write llms.txt, both from the pages of the navigation."""
    pages = list_pages(settings)
    addresses = {page.address for page in pages}
    tune_search_index(workspace / "site" / "search.json", addresses)
    searchable = [page for page in pages if is_searchable(page.address, addresses)]
    text = build_llms(settings, searchable, workspace / "docs")
    (workspace / "site" / "llms.txt").write_text(text, encoding="utf-8")


def collect_pages(folder: Path) -> None:
    """Write every page with its links converted into this folder, and every linked file."""
    pending = [*list_texts(), *sorted((ROOT / "docs" / "assets").iterdir())]
    seen = set(pending)
    while pending:
        source = pending.pop()
        for target in write_file(source, folder):
            if target not in seen:
                seen.add(target)
                pending.append(target)
    write_class_pages(folder)


def list_texts() -> Iterator[Path]:
    """Yield the texts that are on the site even if no page links to them."""
    yield from sorted((ROOT / "docs").rglob("*.md"))
    # Not deeper: the folder of an example that was run contains its packages.
    yield ROOT / "examples" / "README.md"
    yield from sorted((ROOT / "examples").glob("*/README.md"))
    yield from (ROOT / name for name in SITE_PATHS)


def write_file(source: Path, folder: Path) -> list[Path]:
    """Write one page or asset, and return the files that it links to."""
    target = folder / get_site_path(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.suffix != ".md":
        shutil.copy(source, target)
        return []
    if source.suffix != ".md":
        target.write_text(build_file_page(source), encoding="utf-8")
        return []
    text, linked = convert_links(source.read_text(encoding="utf-8"), source)
    front_matter = WIDE if get_site_path(source) in WIDE_PAGES else ""
    target.write_text(front_matter + convert_alerts(text), encoding="utf-8")
    return linked


def get_site_path(source: Path) -> str:
    """Return the path on the site of a file of the repository."""
    path = source.relative_to(ROOT).as_posix()
    if path in SITE_PATHS:
        return SITE_PATHS[path]
    if path.endswith("/README.md"):
        # The README of an example is a page. Another README is the first page of its folder.
        is_example = path.count("/") == 2 and path.startswith("examples/")
        path = path.removesuffix("/README.md") + (".md" if is_example else "/index.md")
    path = path.removeprefix("docs/")
    if source.suffix in {".md", *ASSETS}:
        return path
    # Tests are text files, so that the search of the site does not list their lines.
    return f"files/{path}{'.txt' if path.startswith('tests/') else '.md'}"


def convert_links(text: str, source: Path) -> tuple[str, list[Path]]:
    """Return a page with converted links and without comments, and the files it links to."""
    targets: list[Path] = []

    def convert(link: re.Match[str]) -> str:
        if "://" in link[2] or link[2].startswith("mailto:"):
            return link[0]
        target = resolve_target(source.parent / link[2])
        targets.append(target)
        folder = Path(get_site_path(source)).parent
        return f"{link[1]}{os.path.relpath(get_site_path(target), folder)}{link[3] or ''}{link[4]}"

    # Every second part is a code block, which stays unchanged.
    parts = FENCED.split(COMMENT.sub("", text))
    parts[::2] = [LINK.sub(convert, part) for part in parts[::2]]
    return "".join(parts), targets


def convert_alerts(text: str) -> str:
    """Return a page with admonitions in place of the alerts of GitHub."""

    def convert(alert: re.Match[str]) -> str:
        indent = alert[1]
        lines = [line[len(indent) + 1 :].removeprefix(" ") for line in alert[3].splitlines()]
        body = "\n".join(f"{indent}    {line}".rstrip() for line in lines)
        return f"{indent}!!! {ADMONITIONS[alert[2]]}\n\n{body}\n"

    parts = FENCED.split(text)
    parts[::2] = [ALERT.sub(convert, part) for part in parts[::2]]
    return "".join(parts)


def resolve_target(target: Path) -> Path:
    """Return the file of a link: the README of a folder, and the first page for the main README."""
    target = Path(os.path.normpath(target))
    if target == ROOT / "README.md":
        return ROOT / "docs" / "index.md"
    return target / "README.md" if target.is_dir() else target


def build_file_page(source: Path) -> str:
    """Return a page with the content of a file."""
    name = source.relative_to(ROOT).as_posix()
    language = LANGUAGES.get(source.suffix, "text")
    return f"# `{name}`\n\n````{language}\n{source.read_text(encoding='utf-8')}````\n"


if __name__ == "__main__":
    main()
