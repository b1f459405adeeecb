"""Load an app by module and attribute, and tasks from a mapping."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from graphile_worker import App, ConfigurationError, TaskRouter
from graphile_worker._discovery.discovery import build_tasks, load_app
from graphile_worker.errors import TaskLoadError

APP = "from graphile_worker import App\n\n{name} = App()\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current directory whose modules are removed from sys.modules afterwards."""
    known = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


@pytest.fixture
def write(folder: Path) -> Callable[[str, str], None]:
    def write(name: str, text: str) -> None:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        importlib.invalidate_caches()

    return write


# load_app


def test_an_app_is_found_by_module_and_attribute(write):
    write("shop_jobs.py", APP.format(name="queue"))

    app = load_app("shop_jobs:queue")

    assert isinstance(app, App)
    assert app is sys.modules["shop_jobs"].queue


def test_the_default_attribute_is_app(write):
    write("shop/__init__.py", "")
    write("shop/jobs.py", APP.format(name="app"))

    assert load_app("shop.jobs") is sys.modules["shop.jobs"].app


def test_a_router_can_be_loaded(write):
    write("shop_jobs.py", "from graphile_worker import TaskRouter\n\napp = TaskRouter()\n")

    assert type(load_app("shop_jobs")) is TaskRouter


def test_a_program_finds_its_own_modules_from_the_current_directory(write, folder):
    write("shop_jobs.py", APP.format(name="app"))
    assert str(folder) not in sys.path

    load_app("shop_jobs")
    load_app("shop_jobs")

    assert sys.path.count(str(folder)) == 1


@pytest.mark.parametrize("path", ["shop_jobs", "shop_jobs:tasks"])
def test_a_wrong_attribute_is_rejected_with_the_right_one(write, path):
    write("shop_jobs.py", APP.format(name="queue"))

    with pytest.raises(ConfigurationError, match="Write shop_jobs:queue."):
        load_app(path)


def test_a_module_without_an_app_is_rejected_with_a_remedy(write):
    write("shop_jobs.py", "app = 'not an app'\n")

    with pytest.raises(ConfigurationError, match="no app 'app' in shop_jobs. Define one there"):
        load_app("shop_jobs")


@pytest.mark.parametrize("path", ["nowhere:app", "nowhere.jobs", "shop.nowhere", "shop/jobs.py"])
def test_a_missing_module_is_named_with_the_format(write, path):
    write("shop/__init__.py", "")
    write("shop/jobs.py", APP.format(name="app"))

    with pytest.raises(ConfigurationError, match=r"no module .* Write package\.module"):
        load_app(path)


@pytest.mark.parametrize("path", ["", ":app", ".jobs:app"])
def test_an_invalid_module_path_is_rejected_with_the_format(folder, path):
    with pytest.raises(ConfigurationError, match=r"Write package\.module"):
        load_app(path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import nowhere_at_all\n", "No module named 'nowhere_at_all'"),
        ("1 / 0\n", "ZeroDivisionError"),
        ("def app(:\n", "SyntaxError"),
        ("raise SystemExit(3)\n", "exited the program"),
    ],
)
def test_a_module_that_cannot_be_imported_is_named_with_the_reason(write, text, reason):
    write("shop_jobs.py", text)

    with pytest.raises(TaskLoadError, match=rf"^shop_jobs .*{reason}"):
        load_app("shop_jobs:app")


# tasks_of


def test_functions_are_tasks_by_the_names_of_the_mapping():
    async def with_context(payload: object, ctx: object) -> None: ...

    tasks = build_tasks({"a/b": with_context, "c": lambda payload: None, "d": lambda: None})

    assert {name: task.identifier for name, task in tasks.items()} == {
        "a/b": "a/b",
        "c": "c",
        "d": "d",
    }
    calls = {
        name: task.signature.build_call_arguments("payload", "context")
        for name, task in tasks.items()
    }
    assert calls == {"a/b": (["payload", "context"], {}), "c": (["payload"], {}), "d": ([], {})}


def test_a_task_keeps_its_signature_and_gets_the_name_of_the_mapping():
    router = TaskRouter[None]()

    @router.task
    async def resize(width: int) -> None: ...

    task = build_tasks({"pictures/resize": resize})["pictures/resize"]

    assert (task.identifier, resize.identifier) == ("pictures/resize", "resize")
    assert task.signature.build_call_arguments({"width": 3}, None) == ([], {"width": 3})
