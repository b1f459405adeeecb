"""`--watch`: files of a real worker change while it runs jobs."""

import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.processes import Program, Programs, eventually
from tests.support.processes import is_process_alive as is_alive
from tests.support.sql import Sql
from tests.support.tiers import size

pytestmark = pytest.mark.feature("F197")

# From a signal to the exit.
EXIT_SECONDS = size(gate=35.0, nightly=10.0)

WAITING = "waiting for a file to change"

# Records the version that ran.
TASK = """
    VERSION = {version}

    async def task(payload, ctx):
        await ctx.query(
            "insert into public.seen (number, version) values (%s, %s)",
            [payload["number"], VERSION],
        )
"""

APP = """
    from graphile_worker import App, JobContext
    from firm.version import VERSION

    app = App()

    @app.task
    async def it(ctx: JobContext, number: int) -> None:
        await ctx.query(
            "insert into public.seen (number, version) values (%s, %s)", [number, VERSION]
        )
"""

# Ends when a file called "go" exists.
WAITS = """
    import asyncio
    from pathlib import Path

    VERSION = {version}

    async def task(payload, ctx):
        ctx.logger.info("begun by %s", VERSION)
        while not Path("go").exists():
            await asyncio.sleep(0.02)
        ctx.logger.info("finished by %s", VERSION)
"""


class WatchedFolder:
    """A watched folder, and the table in which its task records its versions."""

    def __init__(self, programs: Programs, sql: Sql) -> None:
        self.programs = programs
        self.sql = sql
        self._number = 0
        sql.run(
            "create table public.seen"
            " (number int, version int, at float8 default extract(epoch from clock_timestamp()))"
        )

    def edit(self, version: int, text: str = TASK) -> float:
        """Write a version of the task, and return the time."""
        self.programs.write("tasks/it.py", text.format(version=version))
        return time.time()

    def write_broken_task(self) -> None:
        self.programs.write("tasks/it.py", "def task(:\n")

    def start(self, *flags: str) -> Program:
        watching = self.programs.worker("--watch", "--poll-interval", "200", *flags)
        watching.wait_for_line("watching ")
        return watching

    def add(self, sql: Sql | None = None) -> int:
        """Add a job, and return its number."""
        self._number += 1
        payload = f'{{"number": {self._number}}}'
        (sql or self.sql).run("select from :schema.add_job('it', $1::json)", payload)
        return self._number

    def wait_for_version(self, version: int) -> float:
        """Wait until a version has run, and return the time."""

        def find() -> float | None:
            first: float | None = self.sql.value(
                "select min(at) from public.seen where version = $1", version
            )
            return first

        found = eventually(find, f"version {version} runs")
        assert found is not None
        return found

    def get_version_of_job(self, number: int) -> int:
        found = eventually(
            lambda: self.sql.run("select version from public.seen where number = $1", number),
            f"job {number} runs",
        )
        version: int = found[0][0]
        return version

    def wait_for_job_version(self, version: int) -> None:
        """Add jobs until one runs with this version."""
        eventually(
            lambda: self.get_version_of_job(self.add()) == version, f"version {version} runs"
        )

    @contextmanager
    def load(self) -> Iterator[None]:
        """Add jobs in the background."""
        ended = threading.Event()

        def produce() -> None:
            own = self.sql.another()
            while not ended.wait(0.01):
                self.add(own)
            own.close()

        producer = threading.Thread(target=produce)
        producer.start()
        try:
            yield
        finally:
            ended.set()
            producer.join()

    def count_runs(self) -> Counter[int]:
        return Counter(number for (number,) in self.sql.run("select number from public.seen"))

    @property
    def numbers(self) -> range:
        return range(1, self._number + 1)

    def left(self) -> int:
        found: int = self.sql.value("select count(*) from :schema.jobs")
        return found


@pytest.fixture
def folder(programs: Programs, sql: Sql) -> WatchedFolder:
    return WatchedFolder(programs, sql)


@pytest.mark.serial
@pytest.mark.timeout(300)
def test_twenty_edits_under_load_lose_no_job_and_apply_within_three_seconds(folder):
    folder.edit(0)
    watching = folder.start("-j", "4")
    late: dict[int, float] = {}

    with folder.load():
        folder.wait_for_version(0)
        for version in range(1, 21):
            if version == 10:
                folder.write_broken_task()
                watching.wait_for_line(WAITING)
            edited = folder.edit(version)
            late[version] = folder.wait_for_version(version) - edited
    eventually(lambda: folder.left() == 0, "all jobs are done")
    code = watching.stop(signal.SIGTERM)

    assert code == 0
    assert len(folder.numbers) > 20
    assert folder.count_runs() == dict.fromkeys(folder.numbers, 1)
    assert max(late.values()) < 3, late
    assert watching.err.count("tasks/it.py could not be imported: SyntaxError") == 1
    assert watching.err.count(WAITING) == 1
    assert not any(map(is_alive, children(watching)))


def test_a_change_of_the_crontab_is_applied(folder):
    folder.edit(1)
    folder.programs.write("crontab", "0 4 * * * it ?id=first\n")
    watching = folder.start()
    eventually(lambda: list_crontabs(folder.sql) == {"first"}, "the first item is known")

    folder.programs.write("crontab", "0 4 * * * it ?id=first\n0 5 * * * it ?id=second\n")
    eventually(lambda: list_crontabs(folder.sql) == {"first", "second"}, "the second item is known")
    folder.programs.write("crontab", "0 4 nonsense\n")
    watching.wait_for_line(WAITING)
    line = watching.wait_for_line("crontab: line 1")
    folder.programs.write("crontab", "0 4 * * * it ?id=third\n")
    eventually(lambda: "third" in list_crontabs(folder.sql), "the third item is known")

    assert "expected" in line
    assert watching.stop(signal.SIGTERM) == 0


def test_a_change_of_a_module_of_the_app_is_applied(folder):
    folder.programs.write("firm/__init__.py", "")
    folder.programs.write("firm/version.py", "VERSION = 1\n")
    folder.programs.write("firm/shop.py", APP)
    watching = folder.start("--app", "firm.shop")
    folder.add()
    folder.wait_for_version(1)

    # Files of the same size within a second: Python would use the compiled file of the old version.
    for version in (2, 3, 4):
        folder.programs.write("firm/version.py", f"VERSION = {version}\n")
        folder.wait_for_job_version(version)

    assert watching.stop(signal.SIGTERM) == 0
    assert not list(folder.programs.folder.rglob("*.pyc"))


def test_an_app_in_another_folder_is_watched(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    others = Programs(elsewhere)
    others.write("firm/__init__.py", "")
    others.write("firm/version.py", "VERSION = 1\n")
    others.write("firm/shop.py", APP)
    path = os.pathsep.join(filter(None, [str(elsewhere), os.environ.get("PYTHONPATH")]))
    watching = folder.programs.worker("-w", "--app", "firm.shop:app", PYTHONPATH=path)
    folder.add()
    folder.wait_for_version(1)

    others.write("firm/version.py", "VERSION = 2\n")
    folder.wait_for_job_version(2)

    assert watching.stop(signal.SIGTERM) == 0


def test_a_change_of_the_config_file_is_applied(folder):
    folder.edit(1)
    (folder.programs.folder / "other").mkdir()
    settings = folder.programs.folder / "graphile-worker.toml"
    settings.write_text("watch = true\n")
    watching = folder.programs.without_fork.worker()

    settings.write_text("concurrences = 2\n")
    watching.wait_for_line("unknown setting 'concurrences', did you mean 'concurrency'?")
    watching.wait_for_line(WAITING)
    # The new settings name another folder.
    folder.programs.write("other/it.py", TASK.format(version=2))
    settings.write_text('tasks = "other"\n')
    folder.add()
    folder.wait_for_version(2)
    folder.programs.write("other/it.py", TASK.format(version=3))
    folder.wait_for_job_version(3)

    assert watching.stop(signal.SIGTERM) == 0


def test_a_worker_that_cannot_start_waits_for_a_change(folder):
    folder.write_broken_task()
    watching = folder.programs.command("--watch")
    watching.wait_for_line(WAITING)

    folder.edit(1)
    folder.add()
    folder.wait_for_version(1)

    assert watching.stop(signal.SIGTERM) == 0
    assert watching.err.count("started process") == 2


def test_a_missing_tasks_folder_is_waited_for(folder):
    watching = folder.programs.command("--watch")
    watching.wait_for_line("no tasks configured. Create a folder ./tasks")
    watching.wait_for_line(WAITING)

    folder.edit(1)
    folder.add()
    folder.wait_for_version(1)

    assert watching.stop(signal.SIGTERM) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_ends_the_wait_for_a_change(folder, number):
    folder.edit(1)
    watching = folder.start()
    folder.write_broken_task()
    watching.wait_for_line(WAITING)

    started_at = time.monotonic()
    code = watching.stop(number)

    assert code == 0
    assert time.monotonic() - started_at < EXIT_SECONDS
    assert "Traceback" not in watching.err
    assert not any(map(is_alive, children(watching)))


def test_a_running_task_finishes_with_the_previous_code(folder):
    folder.edit(1, WAITS)
    watching = folder.start("-p", "2")
    folder.add()
    watching.wait_for_line("begun by 1")

    folder.edit(2)
    watching.wait_for_line("finishes its jobs with the previous code")
    folder.add()
    folder.wait_for_version(2)
    begun, finished = watching.err.count("begun by"), watching.err.count("finished by")
    (folder.programs.folder / "go").touch()
    watching.wait_for_line("finished by 1")
    eventually(lambda: folder.left() == 0, "all jobs are done")

    assert (begun, finished) == (1, 0)
    assert watching.stop(signal.SIGTERM) == 0
    assert len(children(watching)) == 4


def test_a_signal_also_stops_processes_with_the_previous_code(folder):
    folder.edit(1, WAITS)
    watching = folder.start()
    folder.add()
    watching.wait_for_line("begun by 1")
    folder.edit(2)
    watching.wait_for_line("finishes its jobs with the previous code")

    watching.signal(signal.SIGTERM)
    watching.wait_for_line("stopping: received SIGTERM")
    watching.signal(signal.SIGTERM)

    assert watching.end() == 128 + signal.SIGTERM
    assert folder.left() == 1
    assert not any(map(is_alive, children(watching)))


def test_many_changes_at_once_leave_one_worker(folder):
    folder.edit(0)
    watching = folder.start()

    # Some changes come during the import of tasks.
    for version in range(1, 30):
        folder.edit(version)
        time.sleep(0.1)
    eventually(lambda: folder.get_version_of_job(folder.add()) == 29, "the last version runs")
    eventually(lambda: alive(watching) == 1, "one process is left")

    assert watching.stop(signal.SIGTERM) == 0


def test_changes_of_unrelated_files_are_ignored(folder):
    folder.edit(1)
    watching = folder.start()

    for name in (".venv/a.py", "env/pyvenv.cfg", "env/lib/b.py", "node_modules/c.py", "notes.txt"):
        folder.programs.write(name, "")
    folder.programs.write("tasks/.it.py.swp", "")
    # Time for several scans.
    time.sleep(1.5)

    assert "files changed, restarting: " not in watching.err
    assert watching.stop(signal.SIGTERM) == 0


@pytest.mark.parametrize("flag", ["--once", "--schema-only", "--cleanup=GC_JOB_QUEUES"])
def test_watch_and_one_shot_flags_exclude_each_other(folder, flag):
    folder.edit(1)

    rejected = folder.programs.run_to_end("--watch", flag)
    done = folder.programs.run_to_end(flag, GRAPHILE_WORKER_WATCH="yes")

    name = flag.partition("=")[0]
    assert rejected.code == 1
    assert rejected.err == (
        f"graphile-worker: {name} and --watch exclude each other. Remove one.\n"
    )
    assert (done.code, "watching" in done.err) == (0, False)


# Helpers


def list_crontabs(sql: Sql) -> set[str]:
    return {name for (name,) in sql.run("select identifier from :schema._private_known_crontabs")}


def children(watching: Program) -> list[int]:
    """The processes that the supervisor has started."""
    return [int(pid) for pid in re.findall(r"started process (\d+)", watching.err)]


def alive(watching: Program) -> int:
    return sum(map(is_alive, children(watching)))
