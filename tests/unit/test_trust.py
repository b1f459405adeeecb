"""Trust in files: a worker rejects files that other users can change."""

import importlib
import logging
import os
import py_compile
import shutil
import sys
from collections.abc import Iterator
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from graphile_worker import ConfigurationError
from graphile_worker._cli.settings.config_file import read_config, warn_group_writable
from graphile_worker._discovery.discovery import load_crontab, load_tasks
from graphile_worker._support.trust import TrustChecker
from graphile_worker.tasks.source_only import _finder
from tests.unit.test_task_folder import PROGRAM, PYTHON, write

STRANGER = 4242

only_for_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def way(tmp_path: Path) -> Path:
    """A file behind folders and a link: shelf/current is 42, and holds tasks/one.py."""
    write(tmp_path / "shelf" / "42" / "tasks" / "one.py")
    (tmp_path / "shelf" / "current").symlink_to("42")
    return tmp_path / "shelf" / "current" / "tasks" / "one.py"


@pytest.fixture(autouse=True)
def _nothing_stays_imported() -> Iterator[None]:
    before = set(sys.modules)
    yield
    _finder.folders.clear()
    for name in set(sys.modules) - before:
        del sys.modules[name]


def doubt(path: Path) -> str | None:
    return TrustChecker(path).find_problem(path)


# The rule


def test_a_file_is_not_trusted_if_any_user_may_change_it_or_a_folder_that_leads_to_it(way):
    assert doubt(way) is None
    shelf = way.parents[2]

    for each in (shelf / "42/tasks/one.py", shelf / "42/tasks", shelf / "42", shelf, shelf.parent):
        mode = each.stat().st_mode
        each.chmod(mode | 0o002)
        assert doubt(way) == f"any user may change {each}: run chmod o-w {each}"
        each.chmod(mode)

    assert doubt(way) is None


def test_a_folder_that_any_user_may_change_does_no_harm_if_it_is_sticky(way):
    for each in way.parents[0], way.parents[1], way.parents[2]:
        each.chmod(0o1777)

    assert doubt(way) is None


def test_the_sticky_bit_of_a_file_changes_nothing(way):
    way.chmod(0o1646)

    assert doubt(way) is not None


@only_for_root
def test_a_file_of_a_foreign_owner_is_not_trusted_nor_one_behind_their_folder_or_link(way):
    shelf = way.parents[2]

    for each in (shelf / "42/tasks/one.py", shelf / "42", shelf, shelf / "current"):
        os.chown(each, STRANGER, -1, follow_symlinks=False)
        assert doubt(way) == (
            f"{each} belongs to user {STRANGER}, who is neither root, the user of this process "
            f"({os.geteuid()}) nor the owner of the working directory: run chown -h "
            f"{os.geteuid()} {each} or mount it read-only"
        )
        os.chown(each, os.geteuid(), -1, follow_symlinks=False)

    assert doubt(way) is None


@only_for_root
def test_the_owner_of_the_working_directory_is_trusted(way, monkeypatch):
    shelf = way.parents[2]
    for each in (shelf, shelf / "42", shelf / "42/tasks", way):
        os.chown(each, STRANGER, -1)
    assert doubt(way) is not None

    monkeypatch.chdir(shelf)

    assert doubt(way) is None


def test_what_a_group_may_change_is_a_warning_that_names_it(way, caplog):
    way.chmod(0o664)
    way.parent.chmod(0o775)
    trust = TrustChecker(way)

    assert trust.find_problem(way) is None
    trust.warn_group_writable()

    folder = way.parent.resolve()
    [warning] = [record.message for record in caplog.records]
    assert warning == (
        f"members of a group may change {folder}, {folder}/one.py, and with them what this "
        f"worker runs: to prevent this, run chmod g-w {folder} {folder}/one.py"
    )


def test_a_pipe_and_a_device_are_trusted(tmp_path):
    reading, writing = os.pipe()
    try:
        assert doubt(Path(f"/dev/fd/{reading}")) is None
    finally:
        os.close(reading)
        os.close(writing)
    assert doubt(Path("/dev/null")) is None


def test_links_without_an_end_are_not_trusted(tmp_path):
    (tmp_path / "round").symlink_to("round")

    assert doubt(tmp_path / "round") == (
        f"{tmp_path}/round cannot be examined ({os.strerror(40)}): make it readable"
    )


# What it holds for


def test_one_rule_holds_for_tasks_executables_crontab_and_config_file(tmp_path, caplog):
    caplog.set_level(logging.WARNING, "graphile_worker")
    python = write(tmp_path / "all.py", "def one(payload): ...\n")
    crontab = write(tmp_path / "crontab", "0 4 * * * one\n")
    config = write(tmp_path / "graphile-worker.toml", "concurrency = 2\n")
    folder = write(tmp_path / "tasks" / "python.py").parent
    program = write(folder / "program", PROGRAM, 0o755)
    readers = {
        "task file": (python, lambda unsafe: load_tasks(python, allow_unsafe=unsafe)),
        "crontab": (crontab, lambda unsafe: load_crontab(crontab, allow_unsafe=unsafe)),
        "config file": (
            config,
            lambda unsafe: read_config(config, is_explicit=True, allow_unsafe=unsafe),
        ),
        "tasks folder": (folder, lambda unsafe: load_tasks(folder, allow_unsafe=unsafe)),
    }

    for what, (path, read) in readers.items():
        mode = path.stat().st_mode
        assert read(False)
        path.chmod(mode | 0o002)
        with pytest.raises(ConfigurationError) as rejected:
            read(False)
        assert str(rejected.value) == (
            f"the {what} {path} is not trusted: any user may change {path}: run chmod o-w "
            f"{path}, or pass --allow-unsafe-tasks to skip this check"
        )
        assert read(True)
        path.chmod(mode)

    assert not caplog.records
    program.chmod(0o757)
    assert list(load_tasks(folder)) == ["python"]
    assert f"ignored file {program} (not trusted)" in caplog.text
    assert list(load_tasks(folder, allow_unsafe=True)) == ["program", "python"]


def test_a_config_file_that_a_group_may_change_is_named_in_the_log(tmp_path, caplog):
    config = write(tmp_path / "mine.toml", "concurrency = 2\n", 0o664)

    assert read_config(config, is_explicit=True) == {"concurrency": 2}
    assert not caplog.records
    warn_group_writable(str(config), allow_unsafe=False)

    assert f"members of a group may change {config}" in caplog.text


def test_a_tasks_folder_of_many_files_that_a_group_may_change_is_one_warning(tmp_path, caplog):
    for number in range(5):
        write(tmp_path / f"task{number}.py", mode=0o664)

    load_tasks(tmp_path)

    [warning] = [record.message for record in caplog.records]
    assert "task2.py and 2 more, and with them" in warning


# Compiled files


def plant(file: Path, text: str) -> Path:
    """A compiled file that Python would believe in place of the source."""
    planted = file.with_suffix(".planted")
    planted.write_text(text)
    compiled = Path(cache_from_source(str(file)))
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(planted), str(compiled), doraise=True, invalidation_mode=mode)
    planted.unlink()
    return compiled


def test_no_compiled_file_of_a_tasks_folder_is_read(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    folder = tmp_path / "queue_tasks"
    files = {
        "__init__.py": "package = 'source'\n",
        "_helper.py": "said = 'source'\n",
        "one.py": "from queue_tasks import package\nfrom queue_tasks._helper import said\n"
        "said = [package, said, 'source']\n" + PYTHON,
    }
    for name, text in files.items():
        plant(write(folder / name, text), text.replace("source", "planted"))
    single = write(tmp_path / "all.py", "said = 'source'\ndef one(payload): return said\n")
    plant(single, single.read_text().replace("source", "planted"))

    load_tasks(folder)

    assert sys.modules["graphile_worker_tasks.one"].said == ["source"] * 3
    assert load_tasks(single)["one"].fn({}) == "source"


def test_no_compiled_file_is_written_to_a_tasks_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    write(tmp_path / "queue_tasks" / "_helper.py", "said = 1\n")
    write(tmp_path / "queue_tasks" / "one.py", f"import queue_tasks._helper\n{PYTHON}")

    assert "one" in load_tasks(tmp_path / "queue_tasks")

    assert sorted(each.name for each in (tmp_path / "queue_tasks").iterdir()) == [
        "_helper.py",
        "one.py",
    ]


def test_a_task_cannot_import_what_is_not_trusted_or_has_no_source(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    folder = tmp_path / "queue_tasks"
    helper = write(folder / "_helper.py", "said = 1\n", 0o646)
    bare = write(folder / "_bare.py", "said = 1\n")
    shutil.move(plant(bare, "said = 2\n"), folder / "_bare.pyc")
    bare.unlink()
    load_tasks(folder)

    with pytest.raises(ImportError, match=f"{helper} is not trusted: any user may change"):
        importlib.import_module("queue_tasks._helper")
    with pytest.raises(ImportError, match=r"_bare\.pyc is compiled"):
        importlib.import_module("queue_tasks._bare")
    load_tasks(folder, allow_unsafe=True)
    assert importlib.import_module("queue_tasks._helper").said == 1
