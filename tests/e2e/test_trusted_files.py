"""The files that the command trusts, and layouts of real deployments."""

import os
import py_compile
import shutil
from importlib.util import cache_from_source

import pytest

from tests.support.processes import INSTALLED, Program, Programs
from tests.support.sql import Sql

TASK = "async def task(payload, ctx): print('hello', flush=True)"

# The id of another user, as in a bind mount from another machine.
OTHER_USER = 4242

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can change the owner of a file"
)


@pytest.fixture
def job(sql: Sql) -> None:
    sql.run("select :schema.add_job('hello')")


def run_in_mounts(programs: Programs, script: str, *arguments: str) -> Program:
    """Run the command with --once in a mount namespace that a script prepares."""
    whole = f'set -e\n{script}\nexec "$@"'
    unshared = ["unshare", "--mount", "--", "sh", "-c", whole, "sh"]
    program = programs.start([*unshared, INSTALLED, "--once", *arguments], {})
    program.end()
    return program


def change_owner(programs: Programs, *names: str) -> None:
    for name in names:
        os.chown(programs.folder / name, OTHER_USER, OTHER_USER)


@pytest.mark.usefixtures("job")
def test_the_check_is_skipped_by_a_flag_and_by_a_variable(programs):
    programs.write("tasks/hello.py", TASK)
    programs.write("graphile-worker.toml", "concurrency = 1")
    for name in ("tasks", "graphile-worker.toml"):
        (programs.folder / name).chmod(0o777)

    rejected = programs.run_to_end("--once")
    done = programs.run_to_end("--once", "--allow-unsafe-tasks")
    again = programs.run_to_end("--once", GRAPHILE_WORKER_ALLOW_UNSAFE_TASKS="true")

    assert rejected.code == 1
    assert rejected.err == (
        "graphile-worker: the config file graphile-worker.toml is not trusted: any user may change "
        f"{programs.folder}/graphile-worker.toml: run chmod o-w "
        f"{programs.folder}/graphile-worker.toml, or pass --allow-unsafe-tasks to skip this check\n"
    )
    assert (done.code, done.out) == (0, "hello\n")
    assert again.code == 0


def test_a_config_file_cannot_vouch_for_itself(programs):
    programs.write("tasks/hello.py", TASK)
    programs.write("graphile-worker.toml", "allow_unsafe_tasks = true")
    (programs.folder / "tasks").chmod(0o777)
    assert programs.run_to_end("--once").code == 0

    (programs.folder / "graphile-worker.toml").chmod(0o666)

    assert (
        "the config file graphile-worker.toml is not trusted" in programs.run_to_end("--once").err
    )


@pytest.mark.usefixtures("job")
def test_a_bind_mount_with_a_foreign_uid_starts(programs):
    programs.write("theirs/tasks/hello.py", TASK)
    change_owner(programs, "theirs", "theirs/tasks", "theirs/tasks/hello.py")
    (programs.folder / "tasks").mkdir()

    copied = programs.folder / "copied"
    shutil.copytree(programs.folder / "theirs", copied)
    change_owner(programs, "copied", "copied/tasks", "copied/tasks/hello.py")
    rejected = programs.run_to_end("--tasks", "copied/tasks", "--once")
    mounted = run_in_mounts(programs, "mount --bind theirs/tasks tasks")
    programs.folder.chmod(0o755)
    os.chown(programs.folder, OTHER_USER, OTHER_USER)
    theirs = programs.run_to_end("--tasks", "theirs/tasks", "--once")

    assert f"belongs to user {OTHER_USER}" in rejected.err
    assert (mounted.code, mounted.out) == (0, "hello\n")
    assert theirs.code == 0


@pytest.mark.usefixtures("job")
def test_a_read_only_mount_starts_with_any_owner_and_any_mode(programs):
    programs.write("theirs/tasks/hello.py", TASK).chmod(0o666)
    (programs.folder / "theirs/tasks").chmod(0o777)
    change_owner(programs, "theirs", "theirs/tasks", "theirs/tasks/hello.py")

    rejected = programs.run_to_end("--tasks", "theirs/tasks", "--once")
    done = run_in_mounts(
        programs,
        "mount --bind theirs theirs; mount -o remount,bind,ro theirs",
        *("--tasks", "theirs/tasks"),
    )

    assert rejected.code == 1
    assert (done.code, done.out) == (0, "hello\n")


@pytest.mark.usefixtures("job")
def test_a_folder_under_a_temporary_directory_starts(programs):
    programs.folder.chmod(0o1777)
    programs.write("mine/tasks/hello.py", TASK)

    done = programs.run_to_end("--tasks", "mine/tasks", "--once")

    assert (done.code, done.out) == (0, "hello\n")


PROCESS_TASK = """
    from pathlib import Path

    from graphile_worker import TaskRouter
    from tasks._helper import said

    router = TaskRouter()


    @router.task(run_in="process")
    def hello() -> None:
        Path("said").write_text(said)
"""


@pytest.mark.usefixtures("job")
def test_the_process_of_a_task_reads_no_compiled_file_of_the_tasks_folder(programs):
    programs.write("tasks/hello.py", PROCESS_TASK)
    helper = programs.write("tasks/_helper.py", "said = 'source'")
    planted = programs.write("planted.py", "said = 'planted'")
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    cache = cache_from_source(str(helper))
    py_compile.compile(str(planted), cache, doraise=True, invalidation_mode=unchecked)

    done = programs.run_to_end("--once")

    assert done.code == 0, done.err
    assert (programs.folder / "said").read_text() == "source"
