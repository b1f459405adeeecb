"""What is watched, and when a change is taken."""

import asyncio
import os
from pathlib import Path

import pytest

from graphile_worker.cli import watching
from graphile_worker.cli.settings import Given, Settings, Source
from graphile_worker.cli.watching import Look, Watched, Watcher, changed, watched_by


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(watching, "LOOK_EVERY", 0.01)


def given(**values: str | Path) -> Settings:
    flags = {name: Given(value, Source.FLAG, f"--{name}") for name, value in values.items()}
    return Settings.collected(flags)


def write(*names: str) -> None:
    for name in names:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")


def names(settings: Settings) -> set[str]:
    return {*watched_by(settings).look()}


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
    before: Look = {"same": (1, 1, 1), "gone": (1, 1, 1), "later": (1, 1, 1), "other": (1, 1, 1)}
    now: Look = {"same": (1, 1, 1), "later": (2, 1, 1), "other": (1, 1, 2), "new": (1, 1, 1)}

    assert changed(before, now) == ["gone", "later", "new", "other"]


async def test_a_change_is_taken_when_two_looks_agree(nothing_given, monkeypatch):
    written = [{"a.py": (count, count, 1)} for count in range(4)]
    first, second, third, last = written
    looks = iter([first, first, second, third, last, last, last])
    monkeypatch.setattr(Watched, "look", lambda self: next(looks))
    watcher = Watcher(given())

    await watcher.change()

    assert [*looks] == []


async def test_a_change_that_is_taken_back_is_none(nothing_given, monkeypatch):
    before: Look = {"a.py": (1, 1, 1)}
    after: Look = {"a.py": (2, 1, 1)}
    looks = iter([before, after, before, before, after, after, after])
    monkeypatch.setattr(Watched, "look", lambda self: next(looks))
    watcher = Watcher(given())

    await watcher.change()

    assert [*looks] == []


async def test_each_change_is_told_once(nothing_given):
    write("a.py")
    watcher = Watcher(given())

    Path("a.py").write_text("new")
    await watcher.change()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watcher.change(), 0.2)
    Path("b.py").write_text("newer")
    await watcher.change()


async def test_a_file_that_is_named_anew_is_watched_from_then_on(nothing_given):
    write("plan")
    watcher = Watcher(given())

    Path("graphile-worker.toml").write_text("crontab = 'plan'")
    await watcher.change()
    Path("plan").write_text("new")
    await watcher.change()


async def test_a_file_with_settings_that_makes_no_sense_is_watched_on(nothing_given):
    watcher = Watcher(given())

    Path("graphile-worker.toml").write_text("nonsense")
    await watcher.change()
    Path("graphile-worker.toml").write_text("")
    await watcher.change()
