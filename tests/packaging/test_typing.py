"""The installed wheel as type checkers and editors see it."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.support.language_server import LanguageServer
from tests.support.options import JOB_OPTIONS
from tests.support.shared_folder import made_once
from tests.support.wheel import environment_with_wheel

pytestmark = pytest.mark.single_version

SNIPPETS = Path(__file__).parent / "typing"
BIN = Path(sys.executable).parent

# Returns the lines with errors of each file in a folder, seen from an interpreter.
Checker = Callable[[Path, Path], dict[str, list[int]]]

# Both are checked at once, as a checker reads the package each time.
GOOD, WRONG = "good_calls.py", "wrong_calls.py"


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """An interpreter that has the built wheel, and nothing of the repository."""
    folder = made_once(tmp_path_factory, "installed", environment_with_wheel)
    python = folder / "env/bin/python"
    where = [str(python), "-c", "import graphile_worker; print(graphile_worker.__file__)"]
    found = subprocess.run(where, capture_output=True, text=True, check=True).stdout
    assert str(python.parents[1]) in found
    return python


def mypy(folder: Path, installed: Path) -> dict[str, list[int]]:
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--no-pretty"]
    command += ["--no-error-summary", "--cache-dir", str(folder), "--warn-unused-ignores"]
    command += ["--python-executable", str(installed)]
    done = subprocess.run([*command, GOOD, WRONG], cwd=folder, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(r"^(.*\.py):(\d+): error:", done.stdout, re.MULTILINE)
    return group_by_file((name, int(line)) for name, line in found)


def basedpyright(folder: Path, installed: Path) -> dict[str, list[int]]:
    settings = {"typeCheckingMode": "strict", "include": [GOOD, WRONG]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [str(BIN / "basedpyright"), "--outputjson", "--pythonpath", str(installed)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    found = json.loads(done.stdout)["generalDiagnostics"]
    errors = [each for each in found if each["severity"] == "error"]
    return group_by_file(
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in errors
    )


def group_by_file(errors: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for name, line in errors:
        found.setdefault(name, []).append(line)
    return found


@pytest.fixture(scope="module", params=[mypy, basedpyright], ids=["mypy", "basedpyright"])
def error_lines(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, installed: Path
) -> dict[str, set[int]]:
    """The lines with errors of both snippets by a checker, which runs once."""
    checker: Checker = request.param

    def make(folder: Path) -> None:
        # Away from the settings of the repository, under names that checkers read.
        shutil.copy(SNIPPETS / "good.py", folder / GOOD)
        shutil.copy(SNIPPETS / "wrong.py.txt", folder / WRONG)
        (folder / "errors.json").write_text(json.dumps(checker(folder, installed)))

    folder = made_once(tmp_path_factory, f"checked by {checker.__name__}", make)
    found = json.loads((folder / "errors.json").read_text())
    assert set(found) <= {GOOD, WRONG}
    return {name: set(found.get(name, [])) for name in (GOOD, WRONG)}


@pytest.mark.timeout(300)
@pytest.mark.feature("F11", "F44", "F45")
def test_correct_calls_pass(error_lines: dict[str, set[int]]):
    assert error_lines[GOOD] == set()


@pytest.mark.timeout(300)
@pytest.mark.feature("F11", "F44", "F45")
def test_every_mistake_is_an_error(error_lines: dict[str, set[int]]):
    lines = (SNIPPETS / "wrong.py.txt").read_text(encoding="utf-8").splitlines()

    marked = {number for number, line in enumerate(lines, start=1) if line.endswith("# error")}

    assert len(marked) >= 181
    assert error_lines[WRONG] == marked


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
            assert shown[-len(JOB_OPTIONS) :] == JOB_OPTIONS
            assert offered >= {f"{name}=" for name in JOB_OPTIONS}
