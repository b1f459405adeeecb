"""The installed wheel as type checkers see it: good calls pass, every wrong one is told."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.shared_folder import made_once
from tests.support.wheel import environment_with_wheel

pytestmark = pytest.mark.single_version

SNIPPETS = Path(__file__).parent / "typing"
BIN = Path(sys.executable).parent

# Which lines of a file a checker refuses, seen from an interpreter.
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


both_checkers = pytest.mark.parametrize("refused_lines", [mypy, basedpyright])


@both_checkers
@pytest.mark.timeout(300)
@pytest.mark.feature("F11", "F44", "F45")
def test_good_calls_pass(refused_lines: Checker, tmp_path, installed):
    file = copied("good.py", tmp_path)

    assert refused_lines(file, installed) == set()


@both_checkers
@pytest.mark.timeout(300)
@pytest.mark.feature("F11", "F44", "F45")
def test_every_wrong_call_is_refused_and_nothing_else(refused_lines: Checker, tmp_path, installed):
    file = copied("wrong.py.txt", tmp_path)
    lines = file.read_text(encoding="utf-8").splitlines()

    marked = {number for number, line in enumerate(lines, start=1) if line.endswith("# error")}

    assert len(marked) >= 100
    assert refused_lines(file, installed) == marked


def copied(snippet: str, folder: Path) -> Path:
    """A copy away from the repository's own settings, under a name that checkers read."""
    file = folder / f"{snippet.partition('.')[0]}_calls.py"
    shutil.copy(SNIPPETS / snippet, file)
    return file
