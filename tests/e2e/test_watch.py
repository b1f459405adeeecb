"""`--watch`: files change under a real worker, and jobs go on."""

import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.processes import Program, Programs, eventually
from tests.support.sql import Sql
from tests.support.tiers import size

pytestmark = pytest.mark.feature("F197")

# Seconds from a signal to the end.
ENDS_WITHIN = size(gate=35.0, nightly=10.0)

WAITING = "waiting for the next change of a file"

# It writes down which edition of it ran.
TASK = """
    EDITION = {edition}

    async def task(payload, ctx):
        await ctx.query(
            "insert into public.seen (number, edition) values (%s, %s)",
            [payload["number"], EDITION],
        )
"""

APP = """
    from graphile_worker import App, JobContext
    from firm.words import EDITION

    app = App()

    @app.task
    async def it(ctx: JobContext, number: int) -> None:
        await ctx.query(
            "insert into public.seen (number, edition) values (%s, %s)", [number, EDITION]
        )
"""

# It ends when a file called "go" is there.
WAITS = """
    import asyncio
    from pathlib import Path

    EDITION = {edition}

    async def task(payload, ctx):
        ctx.logger.info("begun by %s", EDITION)
        while not Path("go").exists():
            await asyncio.sleep(0.02)
        ctx.logger.info("finished by %s", EDITION)
"""


class Bench:
    """A folder under watch, and the table in which its task writes."""

    def __init__(self, programs: Programs, sql: Sql) -> None:
        self.programs = programs
        self.sql = sql
        self._number = 0
        sql.run(
            "create table public.seen"
            " (number int, edition int, at float8 default extract(epoch from clock_timestamp()))"
        )

    def edit(self, edition: int, text: str = TASK) -> float:
        """Write an edition of the task; when."""
        self.programs.write("tasks/it.py", text.format(edition=edition))
        return time.time()

    def break_it(self) -> None:
        self.programs.write("tasks/it.py", "def task(:\n")

    def start(self, *flags: str) -> Program:
        watching = self.programs.worker("--watch", "--poll-interval", "200", *flags)
        watching.wait_for_line("watching ")
        return watching

    def add(self, sql: Sql | None = None) -> int:
        """One more job; its number."""
        self._number += 1
        payload = f'{{"number": {self._number}}}'
        (sql or self.sql).run("select from :schema.add_job('it', $1::json)", payload)
        return self._number

    def ran(self, edition: int) -> float:
        """When that edition first ran, once it has."""

        def look() -> float | None:
            first: float | None = self.sql.value(
                "select min(at) from public.seen where edition = $1", edition
            )
            return first

        found = eventually(look, f"edition {edition} runs")
        assert found is not None
        return found

    def ran_job_by(self, number: int) -> int:
        found = eventually(
            lambda: self.sql.run("select edition from public.seen where number = $1", number),
            f"job {number} runs",
        )
        edition: int = found[0][0]
        return edition

    @contextmanager
    def load(self) -> Iterator[None]:
        """Jobs are added all the time."""
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

    def counts(self) -> Counter[int]:
        return Counter(number for (number,) in self.sql.run("select number from public.seen"))

    @property
    def numbers(self) -> range:
        return range(1, self._number + 1)

    def left(self) -> int:
        found: int = self.sql.value("select count(*) from :schema.jobs")
        return found


@pytest.fixture
def bench(programs: Programs, sql: Sql) -> Bench:
    return Bench(programs, sql)


@pytest.mark.serial
@pytest.mark.timeout(300)
def test_twenty_edits_under_load_lose_no_job_and_run_within_three_seconds(bench):
    bench.edit(0)
    watching = bench.start("-j", "4")
    late: dict[int, float] = {}

    with bench.load():
        bench.ran(0)
        for edition in range(1, 21):
            if edition == 10:
                bench.break_it()
                watching.wait_for_line(WAITING)
            edited = bench.edit(edition)
            late[edition] = bench.ran(edition) - edited
    eventually(lambda: bench.left() == 0, "all jobs are done")
    code = watching.stop(signal.SIGTERM)

    assert code == 0
    assert len(bench.numbers) > 20
    assert bench.counts() == dict.fromkeys(bench.numbers, 1)
    assert max(late.values()) < 3, late
    assert watching.err.count("tasks/it.py could not be imported: SyntaxError") == 1
    assert watching.err.count(WAITING) == 1
    assert not any(map(is_alive, children(watching)))


def test_an_edit_of_the_crontab_is_taken(bench):
    bench.edit(1)
    bench.programs.write("crontab", "0 4 * * * it ?id=first\n")
    watching = bench.start()
    eventually(lambda: crontabs(bench.sql) == {"first"}, "the first item is known")

    bench.programs.write("crontab", "0 4 * * * it ?id=first\n0 5 * * * it ?id=second\n")
    eventually(lambda: crontabs(bench.sql) == {"first", "second"}, "the second item is known")
    bench.programs.write("crontab", "0 4 nonsense\n")
    watching.wait_for_line(WAITING)
    told = watching.wait_for_line("crontab: line 1")
    bench.programs.write("crontab", "0 4 * * * it ?id=third\n")
    eventually(lambda: "third" in crontabs(bench.sql), "the third item is known")

    assert "expected" in told
    assert watching.stop(signal.SIGTERM) == 0


def test_an_edit_of_a_module_of_the_app_is_taken(bench):
    bench.programs.write("firm/__init__.py", "")
    bench.programs.write("firm/words.py", "EDITION = 1\n")
    bench.programs.write("firm/shop.py", APP)
    watching = bench.start("--app", "firm.shop")
    bench.add()
    bench.ran(1)

    # Of the same size, and within a second: nothing that was compiled before may be taken for it.
    for edition in (2, 3, 4):
        bench.programs.write("firm/words.py", f"EDITION = {edition}\n")
        eventually(lambda: bench.ran_job_by(bench.add()) == edition, f"edition {edition} runs")  # noqa: B023

    assert watching.stop(signal.SIGTERM) == 0
    assert not list(bench.programs.folder.rglob("*.pyc"))


def test_an_app_that_lies_elsewhere_is_watched(bench, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    others = Programs(elsewhere)
    others.write("firm/__init__.py", "")
    others.write("firm/words.py", "EDITION = 1\n")
    others.write("firm/shop.py", APP)
    path = os.pathsep.join(filter(None, [str(elsewhere), os.environ.get("PYTHONPATH")]))
    watching = bench.programs.worker("-w", "--app", "firm.shop:app", PYTHONPATH=path)
    bench.add()
    bench.ran(1)

    others.write("firm/words.py", "EDITION = 2\n")
    eventually(lambda: bench.ran_job_by(bench.add()) == 2, "edition 2 runs")

    assert watching.stop(signal.SIGTERM) == 0


def test_an_edit_of_the_file_with_settings_is_taken(bench):
    bench.edit(1)
    (bench.programs.folder / "other").mkdir()
    settings = bench.programs.folder / "graphile-worker.toml"
    settings.write_text("watch = true\n")
    watching = bench.programs.without_fork.worker()

    settings.write_text("concurrences = 2\n")
    watching.wait_for_line("there is no setting concurrences: is it concurrency?")
    watching.wait_for_line(WAITING)
    # What is to be watched is another folder from now on.
    bench.programs.write("other/it.py", TASK.format(edition=2))
    settings.write_text('tasks = "other"\n')
    bench.add()
    bench.ran(2)
    bench.programs.write("other/it.py", TASK.format(edition=3))
    eventually(lambda: bench.ran_job_by(bench.add()) == 3, "edition 3 runs")

    assert watching.stop(signal.SIGTERM) == 0


def test_a_worker_that_is_broken_from_the_start_waits(bench):
    bench.break_it()
    watching = bench.programs.command("--watch")
    watching.wait_for_line(WAITING)

    bench.edit(1)
    bench.add()
    bench.ran(1)

    assert watching.stop(signal.SIGTERM) == 0
    assert watching.err.count("started process") == 2


def test_a_folder_that_is_not_there_yet_is_waited_for(bench):
    watching = bench.programs.command("--watch")
    watching.wait_for_line("no tasks: make a folder ./tasks")
    watching.wait_for_line(WAITING)

    bench.edit(1)
    bench.add()
    bench.ran(1)

    assert watching.stop(signal.SIGTERM) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_while_it_waits_ends_it(bench, number):
    bench.edit(1)
    watching = bench.start()
    bench.break_it()
    watching.wait_for_line(WAITING)

    began = time.monotonic()
    code = watching.stop(number)

    assert code == 0
    assert time.monotonic() - began < ENDS_WITHIN
    assert "Traceback" not in watching.err
    assert not any(map(is_alive, children(watching)))


def test_a_task_that_runs_goes_on_under_the_code_from_before(bench):
    bench.edit(1, WAITS)
    watching = bench.start("-p", "2")
    bench.add()
    watching.wait_for_line("begun by 1")

    bench.edit(2)
    watching.wait_for_line("finishes its jobs with the code from before")
    bench.add()
    bench.ran(2)
    begun, finished = watching.err.count("begun by"), watching.err.count("finished by")
    (bench.programs.folder / "go").touch()
    watching.wait_for_line("finished by 1")
    eventually(lambda: bench.left() == 0, "all jobs are done")

    assert (begun, finished) == (1, 0)
    assert watching.stop(signal.SIGTERM) == 0
    assert len(children(watching)) == 4


def test_a_signal_stops_those_that_still_finish_too(bench):
    bench.edit(1, WAITS)
    watching = bench.start()
    bench.add()
    watching.wait_for_line("begun by 1")
    bench.edit(2)
    watching.wait_for_line("finishes its jobs with the code from before")

    watching.signal(signal.SIGTERM)
    watching.wait_for_line("stopping: heard SIGTERM")
    watching.signal(signal.SIGTERM)

    assert watching.end() == 128 + signal.SIGTERM
    assert bench.left() == 1
    assert not any(map(is_alive, children(watching)))


def test_many_edits_at_once_leave_one_worker(bench):
    bench.edit(0)
    watching = bench.start()

    # Some come while a process still imports its tasks.
    for edition in range(1, 30):
        bench.edit(edition)
        time.sleep(0.1)
    eventually(lambda: bench.ran_job_by(bench.add()) == 29, "the last edition runs")
    eventually(lambda: alive(watching) == 1, "one process is left")

    assert watching.stop(signal.SIGTERM) == 0


def test_a_file_that_is_no_part_of_it_changes_nothing(bench):
    bench.edit(1)
    watching = bench.start()

    for name in (".venv/a.py", "env/pyvenv.cfg", "env/lib/b.py", "node_modules/c.py", "notes.txt"):
        bench.programs.write(name, "")
    bench.programs.write("tasks/.it.py.swp", "")
    # Time for several looks.
    time.sleep(1.5)

    assert "changed: " not in watching.err
    assert watching.stop(signal.SIGTERM) == 0


@pytest.mark.parametrize("flag", ["--once", "--schema-only", "--cleanup=GC_JOB_QUEUES"])
def test_what_ends_by_itself_is_not_watched(bench, flag):
    bench.edit(1)

    refused = bench.programs.run_to_end("--watch", flag)
    done = bench.programs.run_to_end(flag, GRAPHILE_WORKER_WATCH="yes")

    name = flag.partition("=")[0]
    assert refused.code == 1
    assert refused.err == f"graphile-worker: {name} and --watch exclude each other\n"
    assert (done.code, "watching" in done.err) == (0, False)


# Words of this file


def crontabs(sql: Sql) -> set[str]:
    return {name for (name,) in sql.run("select identifier from :schema._private_known_crontabs")}


def children(watching: Program) -> list[int]:
    """The processes that it has started so far."""
    return [int(pid) for pid in re.findall(r"started process (\d+)", watching.err)]


def alive(watching: Program) -> int:
    return sum(map(is_alive, children(watching)))


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
