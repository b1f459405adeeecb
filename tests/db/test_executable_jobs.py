"""Jobs of executables: their outcome, their rows, and that no process is left running."""

import logging
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from graphile_worker import ExecutableFailed, ExecutableOptions, WorkerOptions
from graphile_worker.events import JobErrored, JobInterrupted, JobStarted, JobSucceeded
from graphile_worker.runner import run_once
from tests.support.names import HOSTILE
from tests.support.processes import is_process_alive
from tests.support.recorder import wait_until

pytestmark = pytest.mark.feature("F121")

ROWS = "select attempts, locked_by, last_error from :schema._private_jobs order by id"
WAITS = "#!/bin/sh\necho $$ > pids\nsleep 600 &\necho $! >> pids\nwait\n"


class Folder:
    """A tasks folder in the current directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()

    def program(self, name: str, text: str) -> None:
        file = self.path / name
        file.write_text(text)
        file.chmod(0o755)

    @property
    async def pids(self) -> list[int]:
        """Return the process ids that a program has written for itself and its child."""
        written = Path("pids")
        await wait_until(lambda: written.exists() and written.read_text().count("\n") == 2)
        return [int(line) for line in written.read_text().splitlines()]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Folder:
    monkeypatch.chdir(tmp_path)
    return Folder(tmp_path / "tasks")


async def once(database: Any, folder: Folder, **options: Any) -> int:
    given = WorkerOptions(**{"schema": database.schema, **options})
    return await run_once(database.dsn, folder.path, options=given)


def gone(pids: list[int]) -> bool:
    return not any(map(is_process_alive, pids))


async def test_exit_code_0_completes_the_job(database, sql, folder):
    folder.program("hello.sh", "#!/bin/sh\ncat > seen\n")
    sql.run("""select :schema.add_job('hello', '{"name": "Ada"}')""")

    assert await once(database, folder) == 1

    assert Path("seen").read_text() == '{"payload":{"name":"Ada"}}'
    assert sql.run(ROWS) == []


@pytest.mark.parametrize(
    ("text", "ended"),
    [
        ("echo oh no >&2; exit 3", "hello ended with exit code 3; last output: oh no"),
        ("kill -KILL $$", "hello ended with signal SIGKILL"),
    ],
)
async def test_last_error_has_the_exit_code_of_the_program(database, sql, folder, text, ended):
    folder.program("hello", f"#!/bin/sh\n{text}\n")
    sql.run("select :schema.add_job('hello')")

    await once(database, folder)

    [(attempts, locked_by, last_error)] = sql.run(ROWS)
    assert (attempts, locked_by) == (1, None)
    assert last_error.splitlines()[0] == f"ExecutableFailed: {ended}"


async def test_a_program_that_cannot_be_started_fails_its_job_and_others_run(database, sql, folder):
    folder.program("broken", "#!/no/such/interpreter\n")
    folder.program("hello", "#!/bin/true\n")
    sql.run("select :schema.add_job('broken'), :schema.add_job('hello')")

    assert await once(database, folder) == 2

    [(_, _, last_error)] = sql.run(ROWS)
    assert "broken could not be started: No such file or directory" in last_error


@pytest.mark.single_version
async def test_a_program_that_exceeds_its_timeout_fails_its_job(database, sql, folder):
    folder.program("slow", WAITS)
    sql.run("select :schema.add_job('slow')")

    await once(database, folder, executables=ExecutableOptions(timeout=timedelta(seconds=5)))

    [(attempts, _, last_error)] = sql.run(ROWS)
    assert attempts == 1
    assert last_error.startswith("ExecutableFailed: slow was ended after 0:00:05")
    pids = await folder.pids
    await wait_until(lambda: gone(pids))


@pytest.mark.parametrize(
    "stop",
    [{"cancel_after": timedelta(0)}, {"cancel_after": None, "shutdown_timeout": timedelta(0)}],
    ids=["asked", "cancelled"],
)
async def test_a_stop_releases_the_job_and_leaves_no_process(sql, folder, start, recorder, stop):
    folder.program("slow", WAITS)
    sql.run("select :schema.add_job('slow')")
    runner = await start(folder.path, **stop)
    pids = await folder.pids

    await runner.stop()

    assert recorder.events_of(JobInterrupted)
    assert sql.run(ROWS) == [(0, None, None)]
    await wait_until(lambda: gone(pids))


async def test_a_kill_releases_the_job_and_leaves_no_process(sql, folder, start):
    folder.program("slow", "#!/bin/sh\ntrap '' TERM\n" + WAITS)
    sql.run("select :schema.add_job('slow')")
    runner = await start(folder.path)
    pids = await folder.pids

    await runner.kill()

    assert sql.run(ROWS) == [(0, None, None)]
    await wait_until(lambda: gone(pids))


async def test_several_programs_run_at_the_same_time(sql, folder, start, recorder):
    # Each waits for the others.
    folder.program(
        "meet",
        "#!/bin/sh\ntouch met.$GRAPHILE_WORKER_JOB_ID\n"
        "until [ $(ls met.* | wc -l) = 5 ]; do sleep 0.05; done\n",
    )
    sql.run("select :schema.add_job('meet') from generate_series(1, 5)")

    await start(folder.path, concurrency=5)

    await recorder.wait_for(JobSucceeded, count=5)


async def test_an_array_fails_as_a_whole(database, sql, folder):
    folder.program("batch", "#!/bin/false\n")
    sql.run("select :schema.add_job('batch', '[1, 2]')")

    await once(database, folder)

    assert sql.run("select payload::text, attempts from :schema._private_jobs") == [("[1, 2]", 1)]


async def test_the_output_of_a_program_is_logged_with_the_ids_of_the_job(
    sql, folder, start, recorder, caplog
):
    caplog.set_level(logging.INFO, "graphile_worker")
    folder.program("hello", "#!/bin/sh\necho hello\necho oh >&2\nexit 1\n")
    job = sql.value("select id from :schema.add_job('hello')")

    await start(folder.path)
    [failed] = await recorder.wait_for(JobErrored)

    assert isinstance(failed.error, ExecutableFailed)
    assert failed.error.code == 1
    said = {
        (record.levelname, record.message): (record.job_id, record.task_identifier)
        for record in caplog.records
        if getattr(record, "label", None) == "job" and hasattr(record, "job_id")
    }
    assert said["INFO", "hello"] == said["ERROR", "oh"] == (job, "hello")


async def test_a_job_with_a_hostile_name_runs_nothing(sql, folder, start, recorder):
    folder.program("../canary", "#!/bin/sh\ntouch sung\n")
    folder.program("good", "#!/bin/true\n")
    added = [name for name in HOSTILE if len(name) <= 128]
    for name in (*added, str(Path("canary").resolve())):
        sql.run("select :schema.add_job($1)", name)
    sql.run("select :schema.add_job('good', priority => 100)")

    await start(folder.path)
    await recorder.wait_for(JobSucceeded)

    assert os.access("canary", os.X_OK)
    assert not Path("sung").exists()
    assert [event.job.task_identifier for event in recorder.events_of(JobStarted)] == ["good"]
    assert sql.run(
        "select count(*), max(attempts), count(locked_by), count(last_error) "
        "from :schema._private_jobs"
    ) == [(len(added) + 1, 0, 0, 0)]
    assert len(added) >= 50
