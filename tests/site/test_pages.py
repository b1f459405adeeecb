"""Every python, sql and console block of README and docs runs, page by page, in order."""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import KINDS, ROOT, pages, wants_schema
from tests.support.processes import Program, Programs
from tests.support.tools import client_program

FIRST = (
    "README.md",
    "docs/get-started/quickstart.md",
    "docs/guides/tasks.md",
    "docs/guides/testing-tasks.md",
)

# The beginning of every block, wherever it stands.
FENCES = re.compile(r"^([ >]*`{3,}.+)$", re.MULTILINE)
RUN = {f"```{kind}" for kind in KINDS}
# What a test cannot run, or what is not for a computer.
OTHERS = (
    *("sh", "text", "toml", "yaml", "ini", "json", "just", "typescript", "dockerfile"),
    # Signatures.
    "pyi",
)
SHOWN = {f"```{kind}" for kind in OTHERS}


def page_of(path: Path) -> Any:
    """The first pages of a newcomer run on all versions, the others once."""
    name = str(path.relative_to(ROOT))
    return pytest.param(path, id=name, marks=[] if name in FIRST else [pytest.mark.single_version])


def start_page(programs: Programs, page: Path) -> Program:
    command = [sys.executable, str(Path(__file__).with_name("run_page.py")), str(page)]
    return programs.start(command, {})


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", [page_of(each) for each in pages()])
def test_the_blocks_of_a_page_run(
    page: Path,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
):
    database = request.getfixturevalue("database" if wants_schema(page) else "empty_database")

    with Programs(tmp_path, DATABASE_URL=database.url, PATH=_path()) as programs:
        program = start_page(programs, page)

        assert program.end(within=300) == 0, program.err
    record_property("page", str(page))


@pytest.mark.parametrize(
    ("console", "code"),
    [
        ("$ graphile-worker --version\ngraphile-worker, version …", 0),
        ("$ graphile-worker --version\nanother text", 1),
        ("$ graphile-worker --version\ngraphile-worker, version …\nand more", 1),
        ("$ graphile-worker --unknown", 1),
        ("$ graphile-worker --unknown\n…\nError: No such option '--unknown'…", 0),
        ("$ printf 'a b' | cut -c 3\nb", 0),
        ("$ false | true", 1),
        ("$ echo one \\\n> two >&2\none two", 0),
    ],
)
@pytest.mark.single_version
def test_a_command_prints_what_its_page_shows(tmp_path: Path, console: str, code: int):
    page = tmp_path / "page.md"
    page.write_text(f"```console\n{console}\n```\n", encoding="utf-8")
    with Programs(tmp_path, PATH=_path()) as programs:
        program = start_page(programs, page)

        assert program.end() == code, program.err


def test_no_block_is_written_in_a_form_that_does_not_run():
    """An indented fence, one with attributes, or another word for the same language."""
    found = {
        f"{page.relative_to(ROOT)}: {fence}"
        for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
        for fence in FENCES.findall(page.read_text(encoding="utf-8"))
        if fence not in RUN and fence not in SHOWN
    }

    assert found == set()


def _path() -> str:
    """Where a reader's shell finds what they have installed."""
    programs = [Path(sys.executable).parent, client_program("psql").parent]
    return os.pathsep.join([*map(str, programs), os.environ["PATH"]])
