"""What is watched, and when a change is taken."""

import asyncio
import os
from pathlib import Path

import pytest

from graphile_worker._cli import reload
from graphile_worker._cli.reload import (
    FileStates,
    FileWatcher,
    WatchedPaths,
    find_watched_paths,
    list_changed_files,
)
from graphile_worker._cli.settings.layers import Settings, SettingSource, SettingValue


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(reload, "CHECK_INTERVAL_SECONDS", 0.01)


def given(**values: str | Path) -> Settings:
    flags = {
        name: SettingValue(value, SettingSource.FLAG, f"--{name}") for name, value in values.items()
    }
    return Settings.collect(flags)


def write(*names: str) -> None:
    for name in names:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")


def names(settings: Settings) -> set[str]:
    return {*find_watched_paths(settings).scan()}


def test_task_files_modules_crontab_and_settings_are_watched(nothing_given):
    ours = {"tasks/a.py", "tasks/deep/run.sh", "b.py", "deep/er/c.py", "crontab"}
    ours |= {"graphile-worker.toml", "pyproject.toml"}
    write(*ours, "notes.txt", ".hidden/d.py", "deep/__pycache__/e.py", "node_modules/f.py")
    write("env/pyvenv.cfg", "env/lib/g.py", "tasks/__pycache__/a.pyc", "tasks/.a.py.swp")
    Path("graphile-worker.toml").write_text("")

    assert names(given()) == ours


def test_what_the_settings_name_is_watched_wherever_it_is(nothing_given, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    write(f"{elsewhere}/jobs/a.sh", f"{elsewhere}/plan", "crontab", "tasks/b.txt")

    found = names(given(tasks=elsewhere / "jobs", crontab=elsewhere / "plan"))

    assert found == {f"{elsewhere}/jobs/a.sh", f"{elsewhere}/plan"}


def test_tasks_may_be_one_file(nothing_given, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    write(f"{elsewhere}/jobs.py", f"{elsewhere}/other.py")

    assert names(given(tasks=elsewhere / "jobs.py")) == {f"{elsewhere}/jobs.py"}


def test_a_package_elsewhere_is_watched_but_not_one_that_is_installed(
    nothing_given, tmp_path_factory, monkeypatch
):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    write(f"{elsewhere}/watchedfirm/__init__.py", f"{elsewhere}/watchedmodule.py")
    write(f"{elsewhere}/watchedfirm/deep/a.py", f"{elsewhere}/site-packages/watchedother.py")
    monkeypatch.syspath_prepend(elsewhere / "site-packages")
    monkeypatch.syspath_prepend(elsewhere)

    package = names(given(app="watchedfirm.deep.a:app"))
    module = names(given(app="watchedmodule"))

    assert package == {
        f"{elsewhere}/watchedfirm/__init__.py",
        f"{elsewhere}/watchedfirm/deep/a.py",
    }
    assert module == {f"{elsewhere}/watchedmodule.py"}
    assert names(given(app="watchedother:app")) == set()
    assert names(given(app="nowhere.to.be.found")) == set()
    assert names(given(app="not a module")) == set()


def test_a_link_to_a_folder_is_not_followed_and_one_to_a_file_is(nothing_given):
    write("real/a.py")
    os.symlink(".", "real/round")
    os.symlink("real/a.py", "b.py")
    os.symlink("nowhere", "c.py")

    assert names(given()) == {"real/a.py", "b.py"}


def test_what_is_new_gone_or_different_has_changed():
    before: FileStates = {
        "same": (1, 1, 1),
        "gone": (1, 1, 1),
        "later": (1, 1, 1),
        "other": (1, 1, 1),
    }
    now: FileStates = {"same": (1, 1, 1), "later": (2, 1, 1), "other": (1, 1, 2), "new": (1, 1, 1)}

    assert list_changed_files(before, now) == ["gone", "later", "new", "other"]


async def test_a_change_is_taken_when_two_looks_agree(nothing_given, monkeypatch):
    written = [{"a.py": (count, count, 1)} for count in range(4)]
    first, second, third, last = written
    looks = iter([first, first, second, third, last, last, last])
    monkeypatch.setattr(WatchedPaths, "scan", lambda self: next(looks))
    watcher = FileWatcher(given())

    await watcher.wait_for_change()

    assert [*looks] == []


async def test_a_change_that_is_taken_back_is_none(nothing_given, monkeypatch):
    before: FileStates = {"a.py": (1, 1, 1)}
    after: FileStates = {"a.py": (2, 1, 1)}
    looks = iter([before, after, before, before, after, after, after])
    monkeypatch.setattr(WatchedPaths, "scan", lambda self: next(looks))
    watcher = FileWatcher(given())

    await watcher.wait_for_change()

    assert [*looks] == []


async def test_each_change_is_told_once(nothing_given):
    write("a.py")
    watcher = FileWatcher(given())

    Path("a.py").write_text("new")
    await watcher.wait_for_change()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watcher.wait_for_change(), 0.2)
    Path("b.py").write_text("newer")
    await watcher.wait_for_change()


async def test_a_file_that_is_named_anew_is_watched_from_then_on(nothing_given):
    write("plan")
    watcher = FileWatcher(given())

    Path("graphile-worker.toml").write_text("crontab = 'plan'")
    await watcher.wait_for_change()
    Path("plan").write_text("new")
    await watcher.wait_for_change()


async def test_a_file_with_settings_that_makes_no_sense_is_watched_on(nothing_given):
    watcher = FileWatcher(given())

    Path("graphile-worker.toml").write_text("nonsense")
    await watcher.wait_for_change()
    Path("graphile-worker.toml").write_text("")
    await watcher.wait_for_change()
