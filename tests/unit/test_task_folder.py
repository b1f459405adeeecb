"""The files of a tasks folder: which ones are tasks, and which ones are trusted."""

import logging
import os
import re
import socket
from pathlib import Path

import pytest

from graphile_worker import ConfigurationError
from graphile_worker._discovery.discovery import load_tasks
from graphile_worker._discovery.executables import Executable
from graphile_worker._discovery.task_folder import find_task_files
from graphile_worker._support.trust import TrustChecker
from tests.support.names import HOSTILE

PYTHON = "async def task(payload, ctx):\n    return 'python'\n"
PROGRAM = "#!/bin/true\n"

pytestmark = pytest.mark.feature("F111")


@pytest.fixture(autouse=True)
def _log(caplog):
    caplog.set_level(logging.INFO, "graphile_worker")


def write(path: Path, text: str = PYTHON, mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def program(path: Path) -> Path:
    return write(path, PROGRAM, 0o755)


def names(folder: Path) -> list[str]:
    return [file.identifier for file in find_task_files(folder, TrustChecker(folder))]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelname == "WARNING"]


# Task files


def test_other_files_and_folders_are_not_tasks(tmp_path, caplog):
    for name in ("notes.txt", "spaced name.py", "bad folder/x.py", "__init__.py", "ok.py"):
        write(tmp_path / name)
    (tmp_path / "linked").symlink_to(tmp_path / "bad folder")

    assert names(tmp_path) == ["ok"]
    assert "spaced name.py" in caplog.text
    assert "bad folder" in caplog.text
    assert "linked" in caplog.text
    assert "notes.txt (neither Python nor executable)" in caplog.text


@pytest.mark.feature("F112", "F121")
def test_an_executable_is_a_task_named_by_its_path(tmp_path):
    for name in ("plain", "shell.sh", "images/resize.v2.rb"):
        program(tmp_path / name)

    tasks = load_tasks(tmp_path)

    assert list(tasks) == ["images/resize", "plain", "shell"]
    assert all(isinstance(task.fn, Executable) for task in tasks.values())
    assert all(task.runs_on_loop for task in tasks.values())


@pytest.mark.feature("F121")
@pytest.mark.parametrize(("mode", "is_task"), [(0o100, True), (0o755, True), (0o655, False)])
def test_the_owner_bit_makes_a_file_executable(tmp_path, mode, is_task):
    write(tmp_path / "tool", PROGRAM, mode)

    assert names(tmp_path) == (["tool"] if is_task else [])


def test_an_executable_python_file_is_imported(tmp_path):
    write(tmp_path / "one.py", "#!/usr/bin/env python3\n" + PYTHON, 0o755)

    assert not isinstance(load_tasks(tmp_path)["one"].fn, Executable)


def test_python_comes_before_an_executable_of_the_same_name(tmp_path, caplog):
    program(tmp_path / "one")
    program(tmp_path / "one.a")
    write(tmp_path / "one.py")

    [file] = find_task_files(tmp_path, TrustChecker(tmp_path))

    assert file.path.name == "one.py"
    assert warnings(caplog) == [
        f"task one is defined by {tmp_path}/one.py, ignored {tmp_path}/one, {tmp_path}/one.a"
    ]


def test_the_first_of_several_files_is_chosen(tmp_path, caplog):
    for name in ("one.sh", "one.bash", "one.d"):
        program(tmp_path / name)

    [file] = find_task_files(tmp_path, TrustChecker(tmp_path))

    assert file.path.name == "one.bash"
    assert f"ignored {tmp_path}/one.d, {tmp_path}/one.sh" in caplog.text


def test_files_that_are_not_tasks_are_not_chosen(tmp_path, caplog):
    write(tmp_path / "one.a")
    program(tmp_path / "one.b")

    [file] = find_task_files(tmp_path, TrustChecker(tmp_path))

    assert file.path.name == "one.b"
    assert warnings(caplog) == []


@pytest.mark.parametrize("name", ["-rf", "--help", "_", "0"])
def test_a_name_with_a_leading_dash_is_an_ordinary_name(tmp_path, name):
    program(tmp_path / name)

    assert names(tmp_path) == [name]


# Links


def test_a_link_has_its_own_name_and_the_code_of_its_target(tmp_path):
    # The layout of Kubernetes volumes.
    write(tmp_path / "..2026_11_15" / "real.py")
    program(tmp_path / "..2026_11_15" / "tool.bin")
    (tmp_path / "..data").symlink_to("..2026_11_15")
    (tmp_path / "alias.py").symlink_to("..data/real.py")
    (tmp_path / "run").symlink_to("..data/tool.bin")

    assert [
        (file.identifier, file.path.name)
        for file in find_task_files(tmp_path, TrustChecker(tmp_path))
    ] == [
        ("alias", "real.py"),
        ("run", "tool.bin"),
    ]
    assert list(load_tasks(tmp_path)) == ["alias", "run"]


def test_the_suffix_of_a_link_decides_whether_it_is_python(tmp_path):
    write(tmp_path / ".hidden" / "source")
    (tmp_path / "one.py").symlink_to(".hidden/source")

    assert not isinstance(load_tasks(tmp_path)["one"].fn, Executable)


@pytest.mark.parametrize("make", [write, program])
@pytest.mark.parametrize("name", ["alias", "alias.py"])
def test_a_link_out_of_the_folder_is_ignored(tmp_path, caplog, make, name):
    make(tmp_path / "elsewhere" / "real")
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / name).symlink_to("../elsewhere/real")

    assert names(tmp_path / "tasks") == []
    assert warnings(caplog) == [
        f"ignored file {tmp_path}/tasks/{name} (a link out of the tasks folder to "
        f"{tmp_path}/elsewhere/real): copy the file, or link to one inside"
    ]


def test_a_folder_with_a_longer_name_is_outside(tmp_path):
    program(tmp_path / "tasks-old" / "real")
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "alias").symlink_to("../tasks-old/real")

    assert names(tmp_path / "tasks") == []


def test_a_link_through_the_outside_back_into_the_folder_is_accepted(tmp_path):
    program(tmp_path / "tasks" / "sub" / "real")
    (tmp_path / "way").symlink_to("tasks/sub")
    (tmp_path / "tasks" / "alias").symlink_to("../way/real")

    assert names(tmp_path / "tasks") == ["alias", "sub/real"]


def test_the_folder_itself_may_be_a_link(tmp_path):
    program(tmp_path / "releases" / "42" / "tool")
    (tmp_path / "tasks").symlink_to("releases/42")

    assert names(tmp_path / "tasks") == ["tool"]


def test_broken_links_and_special_files_are_ignored(tmp_path, caplog):
    (tmp_path / "broken.py").symlink_to("nowhere.py")
    (tmp_path / "round.py").symlink_to("round.py")
    (tmp_path / "device").symlink_to("/dev/null")
    os.mkfifo(tmp_path / "fifo.py")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "sock.py"))

    assert names(tmp_path) == []
    for name in ("broken.py", "round.py", "device", "fifo.py", "sock.py"):
        assert f"ignored file {tmp_path}/{name}" in caplog.text


# Trust. The rule itself is in test_trust.py.


@pytest.mark.parametrize("make", [write, program])
def test_a_file_that_any_user_may_change_is_ignored(tmp_path, caplog, make):
    file = make(tmp_path / "one.py")
    file.chmod(file.stat().st_mode | 0o002)
    write(tmp_path / "two.py")

    assert names(tmp_path) == ["two"]
    assert warnings(caplog) == [
        f"ignored file {file} (not trusted): any user may change {file}: run chmod o-w {file}"
    ]


def test_a_folder_that_any_user_may_change_is_ignored(tmp_path, caplog):
    program(tmp_path / "open" / "deep" / "one")
    program(tmp_path / "open" / "two")
    (tmp_path / "open").chmod(0o777)
    program(tmp_path / "three")

    assert names(tmp_path) == ["three"]
    assert warnings(caplog) == [
        f"ignored folder {tmp_path}/open (not trusted): any user may change {tmp_path}/open: "
        f"run chmod o-w {tmp_path}/open"
    ]


def test_a_link_into_a_folder_that_any_user_may_change_is_ignored(tmp_path, caplog):
    program(tmp_path / ".open" / "deep" / "one")
    (tmp_path / ".open").chmod(0o777)
    (tmp_path / "alias").symlink_to(".open/deep/one")

    assert names(tmp_path) == []
    assert f"run chmod o-w {tmp_path}/.open" in caplog.text


def test_a_tasks_folder_that_any_user_may_change_is_rejected(tmp_path):
    folder = tmp_path / "my tasks"
    program(folder / "one")
    folder.chmod(0o777)

    with pytest.raises(ConfigurationError) as rejected:
        names(folder)

    assert str(rejected.value) == (
        f"the tasks folder {folder} is not trusted: any user may change {folder}: run chmod o-w "
        f"'{folder}', or pass --allow-unsafe-tasks to skip this check"
    )


# Hostile names


@pytest.mark.feature("F112")
def test_no_file_with_a_hostile_name_is_a_task(tmp_path, caplog):
    folder = tmp_path / "tasks"
    folder.mkdir()
    program(tmp_path / "canary")
    put = [name for name in HOSTILE if _write(folder, name)]
    program(folder / "good")

    assert names(folder) == ["good"]
    assert len(put) >= 35
    # File names must not create log lines.
    assert not re.search("[\x00-\x08\x0a-\x1f\x7f\u202e]", "".join(caplog.messages))


def _write(folder: Path, name: str) -> bool:
    """Make a program of this name, if the file system allows it."""
    if "/" in name or name in (".", ".."):
        return False
    program(folder / name)
    program(folder / f"{name}.sh")
    return True


def test_a_name_that_is_not_utf8_is_escaped(tmp_path, caplog):
    name = os.fsdecode(b"tool\xe9.py")
    write(tmp_path / name)
    write(tmp_path / "two\nlines.py")

    assert names(tmp_path) == []
    assert f"ignored file {tmp_path}/tool\\udce9.py" in caplog.text
    assert f"ignored file {tmp_path}/two\\nlines.py" in caplog.text


def test_a_name_too_long_for_the_database_is_ignored(tmp_path, caplog):
    program(tmp_path / ("a" * 100) / ("b" * 27))
    program(tmp_path / ("a" * 100) / ("b" * 28))

    assert names(tmp_path) == [f"{'a' * 100}/{'b' * 27}"]
    assert "too long for a task" in caplog.text
