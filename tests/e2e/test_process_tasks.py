"""Tasks in processes, under real programs: however tasks are given, and however a worker ends."""

import signal
import sys

import pytest

from tests.support.processes import Programs, eventually
from tests.support.processes import is_process_alive as lives
from tests.support.sql import Sql

SCRIPT = """
    import asyncio
    import os
    from pathlib import Path

    from graphile_worker import App

    app = App()


    @app.task(run_in="process")
    def where(name: str) -> None:
        Path(name).write_text(f"{os.getpid()} {os.getppid()} {__name__}")


    @app.task(run_in="process")
    def waits(name: str) -> None:
        import subprocess
        import time

        child = subprocess.Popen(["sleep", "600"])
        Path(name).write_text(f"{os.getpid()} {child.pid}")
        time.sleep(600)


    @app.task(run_in="process")
    def computes(name: str) -> None:
        import subprocess

        child = subprocess.Popen(["sleep", "600"])
        Path(name).write_text(f"{os.getpid()} {child.pid}")
        # No other thread of this process runs meanwhile.
        sum(range(10**13))


    async def main() -> None:
        await app.amigrate()
        await where.aenqueue("said")
        print(await app.worker().run_once())
        await app.close()

"""
GUARDED = (
    SCRIPT
    + """
    if __name__ == "__main__":
        asyncio.run(main())
"""
)
UNGUARDED = (
    SCRIPT
    + """
    asyncio.run(app.worker().run_once())
"""
)

IN_FOLDER = """
    import os
    from pathlib import Path

    from graphile_worker import TaskRouter

    tasks = TaskRouter()


    @tasks.task(run_in="process")
    def anything(name: str) -> None:
        Path(name).write_text(f"{os.getpid()} {os.getppid()}")
"""


def said(programs: Programs) -> list[str]:
    return (programs.folder / "said").read_text().split()


def test_a_script_may_hold_the_tasks_and_start_the_worker(programs):
    program = programs.python(GUARDED)

    assert program.end() == 0, program.err
    assert program.out == "1\n"
    assert said(programs)[1:] == [str(program.pid), "__graphile_worker_main__"]


def test_a_script_that_starts_a_worker_whenever_it_is_imported_fails_its_jobs_alone(
    programs, sql: Sql
):
    sql.run("select :schema.add_job('where', '{\"name\": \"said\"}')")

    program = programs.python(UNGUARDED)

    assert program.end() == 0, program.err
    (error,) = sql.run("select last_error from :schema._private_jobs")[0]
    assert 'under `if __name__ == "__main__":`' in error


@pytest.mark.every_version
@pytest.mark.parametrize("command", [["-m", "shop"], ["-m", "shop.tasks"]])
def test_a_module_may_be_the_program(programs, command):
    programs.write("shop/__init__.py", "")
    programs.write("shop/__main__.py", GUARDED)
    programs.write("shop/tasks.py", GUARDED)

    program = programs.start([sys.executable, *command], {})

    assert program.end() == 0, program.err
    assert said(programs)[1] == str(program.pid)


def test_a_file_of_the_tasks_folder_may_hold_one(programs, sql: Sql):
    programs.write("tasks/deep/resize.py", IN_FOLDER)
    sql.run("select :schema.add_job('deep/resize', '{\"name\": \"said\"}')")

    program = programs.run_to_end("--once")

    assert program.code == 0, program.err
    assert said(programs)[1] == str(program.pid)


@pytest.mark.every_version
def test_a_process_of_a_task_starts_without_the_current_directory_on_its_module_path(
    programs, sql: Sql
):
    for planted in ("graphile_worker/__init__.py", "asyncio/__init__.py", "socket.py", "json.py"):
        programs.write(planted, "raise SystemExit('planted')\n")
    programs.write("tasks/resize.py", IN_FOLDER)
    sql.run("select :schema.add_job('resize', '{\"name\": \"said\"}')")

    program = programs.run_to_end("--once")

    assert (program.code, sql.run("select last_error from :schema._private_jobs")) == (0, [])
    assert said(programs)[1] == str(program.pid)


@pytest.mark.every_version
def test_a_process_imports_the_module_of_the_app_before_the_module_of_the_task(programs, sql: Sql):
    programs.write("framework.py", "is_ready = False\n")
    programs.write(
        "shop/tasks.py",
        """
        import framework
        from pathlib import Path

        from graphile_worker import TaskRouter

        if not framework.is_ready:
            raise RuntimeError("set up the framework first")
        router = TaskRouter()

        @router.task(run_in="process")
        def where(name: str) -> None:
            Path(name).write_text("ready")
        """,
    )
    programs.write(
        "worker.py",
        """
        import framework
        from graphile_worker import App

        framework.is_ready = True
        app = App()

        from shop.tasks import router

        app.include(router)
        """,
    )
    sql.run("""select :schema.add_job('where', '{"name": "said"}')""")

    done = programs.run_to_end("--once", "--app", "worker:app")

    assert said(programs) == ["ready"], done.err


@pytest.mark.parametrize(
    "task",
    [
        "waits",
        pytest.param(
            "computes",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="needs a signal of Linux"),
        ),
    ],
)
def test_processes_and_what_they_started_end_with_a_worker_that_is_killed(
    programs, sql: Sql, task: str
):
    programs.write("shop.py", GUARDED)
    worker = programs.worker("--app", "shop:app")
    sql.run(f"select :schema.add_job('{task}', '{{\"name\": \"said\"}}')")
    eventually(lambda: (programs.folder / "said").exists() and said(programs), "it runs")

    worker.signal(signal.SIGKILL)

    eventually(lambda: not any(map(lives, said(programs))), "all of them are gone")
