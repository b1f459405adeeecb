"""`--watch`: the watched files, and when a change is reported."""

import asyncio
import os
from pathlib import Path

import pytest

from graphile_worker._cli.reload import (
    FileStates,
    FileWatcher,
    WatchedPaths,
    find_watched_paths,
    list_changed_files,
)
from graphile_worker._cli.settings.layers import Settings, SettingSource, SettingValue


def collect(**values: str | Path) -> Settings:
    flags = {
        name: SettingValue(value, SettingSource.FLAG, f"--{name}") for name, value in values.items()
    }
    return Settings.collect(flags)


def write(*names: str) -> None:
    for name in names:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")


def list_watched(settings: Settings) -> set[str]:
    return {*find_watched_paths(settings).scan()}


def test_task_files_modules_crontab_and_settings_are_watched(empty_environment):
    watched = {"tasks/a.py", "tasks/deep/run.sh", "b.py", "deep/er/c.py", "crontab"}
    watched |= {"graphile-worker.toml", "pyproject.toml"}
    write(*watched, "notes.txt", ".hidden/d.py", "deep/__pycache__/e.py", "node_modules/f.py")
    write("env/pyvenv.cfg", "env/lib/g.py", "tasks/__pycache__/a.pyc", "tasks/.a.py.swp")
    Path("graphile-worker.toml").write_text("")

    assert list_watched(collect()) == watched


def test_paths_of_the_settings_are_watched_in_any_folder(empty_environment, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    write(f"{elsewhere}/jobs/a.sh", f"{elsewhere}/plan", "crontab", "tasks/b.txt")

    found = list_watched(collect(tasks=elsewhere / "jobs", crontab=elsewhere / "plan"))

    assert found == {f"{elsewhere}/jobs/a.sh", f"{elsewhere}/plan"}


def test_tasks_may_be_one_file(empty_environment, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    write(f"{elsewhere}/jobs.py", f"{elsewhere}/other.py")

    assert list_watched(collect(tasks=elsewhere / "jobs.py")) == {f"{elsewhere}/jobs.py"}


def test_an_app_elsewhere_is_watched_but_not_an_installed_package(
    empty_environment, tmp_path_factory, monkeypatch
):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    write(f"{elsewhere}/watchedfirm/__init__.py", f"{elsewhere}/watchedmodule.py")
    write(f"{elsewhere}/watchedfirm/deep/a.py", f"{elsewhere}/site-packages/watchedother.py")
    monkeypatch.syspath_prepend(elsewhere / "site-packages")
    monkeypatch.syspath_prepend(elsewhere)

    package = list_watched(collect(app="watchedfirm.deep.a:app"))
    module = list_watched(collect(app="watchedmodule"))

    assert package == {
        f"{elsewhere}/watchedfirm/__init__.py",
        f"{elsewhere}/watchedfirm/deep/a.py",
    }
    assert module == {f"{elsewhere}/watchedmodule.py"}
    assert list_watched(collect(app="watchedother:app")) == set()
    assert list_watched(collect(app="nowhere.to.be.found")) == set()
    assert list_watched(collect(app="not a module")) == set()


def test_links_to_files_are_followed_and_links_to_folders_are_not(empty_environment):
    write("real/a.py")
    os.symlink(".", "real/round")
    os.symlink("real/a.py", "b.py")
    os.symlink("nowhere", "c.py")

    assert list_watched(collect()) == {"real/a.py", "b.py"}


def test_new_deleted_and_different_files_have_changed():
    before: FileStates = {
        "same": (1, 1, 1),
        "gone": (1, 1, 1),
        "later": (1, 1, 1),
        "other": (1, 1, 1),
    }
    now: FileStates = {"same": (1, 1, 1), "later": (2, 1, 1), "other": (1, 1, 2), "new": (1, 1, 1)}

    assert list_changed_files(before, now) == ["gone", "later", "new", "other"]


async def test_a_change_is_reported_when_two_scans_agree(empty_environment, monkeypatch):
    written = [{"a.py": (count, count, 1)} for count in range(4)]
    first, second, third, last = written
    scans = iter([first, first, second, third, last, last, last])
    monkeypatch.setattr(WatchedPaths, "scan", lambda self: next(scans))
    watcher = FileWatcher(collect(), check_interval=0.01)

    await watcher.wait_for_change()

    assert [*scans] == []


async def test_a_reverted_change_is_not_reported(empty_environment, monkeypatch):
    before: FileStates = {"a.py": (1, 1, 1)}
    after: FileStates = {"a.py": (2, 1, 1)}
    scans = iter([before, after, before, before, after, after, after])
    monkeypatch.setattr(WatchedPaths, "scan", lambda self: next(scans))
    watcher = FileWatcher(collect(), check_interval=0.01)

    await watcher.wait_for_change()

    assert [*scans] == []


async def test_each_change_is_reported_once(empty_environment):
    write("a.py")
    watcher = FileWatcher(collect(), check_interval=0.01)

    Path("a.py").write_text("new")
    await watcher.wait_for_change()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watcher.wait_for_change(), 0.2)
    Path("b.py").write_text("newer")
    await watcher.wait_for_change()


async def test_a_file_named_by_changed_settings_is_watched(empty_environment):
    write("plan")
    watcher = FileWatcher(collect(), check_interval=0.01)

    Path("graphile-worker.toml").write_text("crontab = 'plan'")
    await watcher.wait_for_change()
    Path("plan").write_text("new")
    await watcher.wait_for_change()


async def test_an_invalid_config_file_is_still_watched(empty_environment):
    watcher = FileWatcher(collect(), check_interval=0.01)

    Path("graphile-worker.toml").write_text("nonsense")
    await watcher.wait_for_change()
    Path("graphile-worker.toml").write_text("")
    await watcher.wait_for_change()
