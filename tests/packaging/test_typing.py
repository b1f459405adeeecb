"""The installed wheel as type checkers and editors see it."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.language_server import LanguageServer
from tests.support.options import SEVEN_OPTIONS
from tests.support.shared_folder import made_once
from tests.support.wheel import environment_with_wheel

pytestmark = pytest.mark.single_version

SNIPPETS = Path(__file__).parent / "typing"
BIN = Path(sys.executable).parent

# Returns the lines of a file with errors, seen from an interpreter.
Checker = Callable[[Path, Path], set[int]]


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """An interpreter that has the built wheel, and nothing of the repository."""
    folder = made_once(tmp_path_factory, "installed", environment_with_wheel)
    python = folder / "env/bin/python"
    where = [str(python), "-c", "import graphile_worker; print(graphile_worker.__file__)"]
    found = subprocess.run(where, capture_output=True, text=True, check=True).stdout
    assert str(python.parents[1]) in found
    return python


def mypy(file: Path, installed: Path) -> set[int]:
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--no-pretty"]
    command += ["--no-error-summary", "--cache-dir", str(file.parent), "--warn-unused-ignores"]
    command += ["--python-executable", str(installed)]
    done = subprocess.run([*command, file.name], cwd=file.parent, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return {int(line) for line in re.findall(r"^.*\.py:(\d+): error:", done.stdout, re.MULTILINE)}


def basedpyright(file: Path, installed: Path) -> set[int]:
    settings = {"typeCheckingMode": "strict", "include": [file.name]}
    (file.parent / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [str(BIN / "basedpyright"), "--outputjson", "--pythonpath", str(installed)]
    done = subprocess.run(command, cwd=file.parent, capture_output=True, text=True)
    found = json.loads(done.stdout)["generalDiagnostics"]
    assert all(each["file"].endswith(file.name) for each in found), found
    errors = [each for each in found if each["severity"] == "error"]
    return {each["range"]["start"]["line"] + 1 for each in errors}


both_checkers = pytest.mark.parametrize("find_error_lines", [mypy, basedpyright])


@both_checkers
@pytest.mark.timeout(300)
@pytest.mark.feature("F11", "F44", "F45")
def test_correct_calls_pass(find_error_lines: Checker, tmp_path, installed):
    file = copy_snippet("good.py", tmp_path)

    assert find_error_lines(file, installed) == set()


@both_checkers
@pytest.mark.timeout(300)
@pytest.mark.feature("F11", "F44", "F45")
def test_every_mistake_is_an_error(find_error_lines: Checker, tmp_path, installed):
    file = copy_snippet("wrong.py.txt", tmp_path)
    lines = file.read_text(encoding="utf-8").splitlines()

    marked = {number for number, line in enumerate(lines, start=1) if line.endswith("# error")}

    assert len(marked) >= 181
    assert find_error_lines(file, installed) == marked


EDITED = """\
from graphile_worker import App, Client, JobContext, SyncJobContext

app = App()

async def add(client: Client, ctx: JobContext, sync_ctx: SyncJobContext) -> None:
    await client.add_job("resize", )
    await ctx.add_job("resize", )
    sync_ctx.add_job("resize", )
    app.add_job("resize", )
    app.tasks()["resize"].using()
"""


@pytest.mark.timeout(300)
@pytest.mark.feature("F45")
def test_editors_show_and_complete_the_job_options(tmp_path, installed):
    file = tmp_path / "edited.py"
    file.write_text(EDITED, encoding="utf-8")
    lines = EDITED.splitlines()

    with LanguageServer(BIN / "basedpyright-langserver", tmp_path, installed) as server:
        server.open(file)
        for number in range(5, len(lines)):
            column = lines[number].index(")", lines[number].rindex("("))
            [signature] = server.ask("signatureHelp", file, number, column)["signatures"]
            completions = server.ask("completion", file, number, column)["items"]

            shown = [each["label"].partition(":")[0] for each in signature["parameters"]]
            offered = {each["label"] for each in completions}
            assert shown[-7:] == SEVEN_OPTIONS
            assert offered >= {f"{name}=" for name in SEVEN_OPTIONS}


def copy_snippet(snippet: str, folder: Path) -> Path:
    """Copy a file away from the repository's settings, under a name that checkers read."""
    file = folder / f"{snippet.partition('.')[0]}_calls.py"
    shutil.copy(SNIPPETS / snippet, file)
    return file
