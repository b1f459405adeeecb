"""Task files: which files are tasks, their identifiers, and how they are called."""

from pathlib import Path

import pytest

from graphile_worker import ConfigurationError
from graphile_worker._discovery.discovery import build_tasks, load_tasks
from graphile_worker.errors import TaskLoadError

PLAIN = "async def task(payload, ctx):\n    return payload, ctx\n"


def write(folder: Path, name: str, text: str = PLAIN) -> None:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_a_task_file_is_named_by_its_path(tmp_path):
    for name in ("hello.py", "users/emails/verify.py", "a-b_c.v2.py"):
        write(tmp_path, name)

    assert sorted(load_tasks(tmp_path)) == ["a-b_c", "hello", "users/emails/verify"]


@pytest.mark.parametrize(
    ("function", "contents"),
    [
        ("def task(payload, ctx): ...", ["payload", "context"]),
        ("def task(payload): ...", ["payload"]),
        ("def task(): ...", []),
        ("def task(*args): ...", ["payload", "context"]),
        ("async def task(payload, helpers): ...", ["payload", "context"]),
    ],
)
def test_a_function_is_called_with_payload_and_context(tmp_path, function, contents):
    write(tmp_path, "one.py", function + "\n")

    task = load_tasks(tmp_path)["one"]

    assert task.signature.build_call_arguments("payload", "context") == (contents, {})


def test_a_task_object_in_a_file_follows_the_rules_of_apps(tmp_path):
    text = (
        "from graphile_worker import TaskRouter\n"
        "t = TaskRouter()\n@t.task\nasync def any(to: str): ...\n"
    )
    write(tmp_path, "mail/send.py", text)

    task = load_tasks(tmp_path)["mail/send"]

    assert task.identifier == "mail/send"
    assert task.signature.build_call_arguments({"to": "ada", "_cron": 1}, None) == (
        [],
        {"to": "ada"},
    )


ROUTER = "from graphile_worker import TaskRouter\nt = TaskRouter()\n"
IMPORT = "from tests.support.process_tasks import"


@pytest.mark.parametrize(
    ("text", "function"),
    [
        # Tasks that the file imports do not count,
        (f"{IMPORT} raises, where\n@t.task\ndef any(): ...\n", "any"),
        (f"{IMPORT} raises as send\n@t.task\ndef any(): ...\n", "any"),
        # but a file without its own task may import one under its name.
        (f"{IMPORT} raises as send\n", "raises"),
        # A function of another module can be a task of the file.
        (f"{IMPORT} plain\nany = t.task(plain)\n", "plain"),
        # Of several tasks, the one named `task` or like the file counts.
        ("@t.task\ndef other(): ...\n@t.task\ndef send(): ...\n", "send"),
        ("@t.task\ndef send(): ...\n@t.task\ndef task(): ...\n", "task"),
    ],
)
def test_a_file_defines_one_task(tmp_path, text, function):
    write(tmp_path, "mail/send.py", ROUTER + text)

    task = load_tasks(tmp_path)["mail/send"]

    assert task.fn.__name__ == function


@pytest.mark.parametrize(
    "text",
    [
        f"{IMPORT} raises\n",
        "@t.task\ndef one(): ...\n@t.task\ndef two(): ...\n",
    ],
)
def test_a_file_with_only_imported_or_several_tasks_is_a_warning(tmp_path, caplog, text):
    write(tmp_path, "mail/send.py", ROUTER + text)

    assert load_tasks(tmp_path) == {}
    assert "send.py (no task found)" in caplog.text


def test_a_file_without_a_task_is_a_warning(tmp_path, caplog):
    write(tmp_path, "empty.py", "x = 1\n")

    assert load_tasks(tmp_path) == {}
    assert "empty.py" in caplog.text


@pytest.mark.parametrize("text", ["1 / 0\n", "def task(:\n", "raise SystemExit(3)\n"])
def test_a_file_that_cannot_be_imported_is_named(tmp_path, text):
    write(tmp_path, "broken.py", text)

    with pytest.raises(TaskLoadError, match=r"broken\.py could not be imported"):
        load_tasks(tmp_path)


def test_a_file_instead_of_a_folder_provides_all_its_functions(tmp_path):
    text = "import json\nfrom json import dumps\ndef one(p): ...\ndef two(p): ...\ndef _no(): ...\n"
    write(tmp_path, "all.py", text)

    assert sorted(load_tasks(tmp_path / "all.py")) == ["one", "two"]


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match="nowhere"):
        load_tasks(tmp_path / "nowhere")


def test_functions_of_a_mapping_are_called_the_same_way():
    task = build_tasks({"send/mail": lambda payload, ctx: None})["send/mail"]

    assert task.identifier == "send/mail"
    assert task.signature.build_call_arguments(1, 2) == ([1, 2], {})


def test_a_task_of_a_folder_cannot_be_enqueued_without_an_app():
    task = build_tasks({"send": lambda payload: None})["send"]

    with pytest.raises(ConfigurationError, match="Add its jobs by name"):
        task.enqueue({})
