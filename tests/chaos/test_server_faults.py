"""The server loses its power, its disk or its transaction ids: nothing acknowledged is lost.

A client that adds a job meanwhile gets the error. Workers back off, and continue afterwards.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

import psycopg
import pytest

from tests.chaos.field import FIRST_JOB_WITHIN, Adder, Field, field_on, ran
from tests.laboratory.servers import Primary, Server
from tests.support.cluster import get_unprivileged_user
from tests.support.processes import eventually
from tests.support.tiers import size
from tests.support.tools import client_program

pytestmark = [pytest.mark.single_version, pytest.mark.timeout(120)]

# Seconds from the database's return to the first job.
SOON = size(**FIRST_JOB_WITHIN)

# Requests per second that a worker may send to a server that rejects them all.
GENTLE = 10


SETTINGS = (
    # For a slot that keeps transaction ids from being freed, and to free them soon without it.
    "wal_level=logical",
    "autovacuum_naptime=1s",
    # As little as can be, and what is written soon needs a new segment.
    "min_wal_size=32MB",
    "max_wal_size=32MB",
    "wal_keep_size=0",
)


@pytest.fixture
def alone(pytestconfig) -> Iterator[Primary]:
    with Primary(pytestconfig.getoption("--pg"), SETTINGS) as alone:
        yield alone


@pytest.fixture
def server(alone) -> Server:
    server: Server = alone.primary
    return server


@pytest.fixture
def field(alone, schema, tmp_path) -> Iterator[Field]:
    with field_on(alone, schema, tmp_path) as field:
        yield field


HELD = "select count(*) from :schema._private_jobs where locked_by is not null"


def test_acknowledged_jobs_run_after_a_power_failure(field, server, figure):
    fallen = [field.start("-j", "5", "--lease-duration", "8s") for _ in range(3)]
    field.add(5, "stay")
    eventually(lambda: sum(each.out.count("began") for each in fallen) == 5, "all run")
    with Adder(field.database) as adder:
        adder.wait_for_more(100)
        for worker in fallen:
            worker.signal(signal.SIGKILL)
        server.crash()

        server.launch()
        with field.sql() as sql:
            held = sql.value(HELD)
        field.let_go_on()
        began = time.monotonic()
        risen = [field.start("-j", "5", "--lease-duration", "8s") for _ in range(3)]
        adder.wait_for_more(50)

    field.wait_for_all(*fallen, *risen)
    field.wait_for_these(adder.acked, *fallen, *risen)
    figure(
        f"server and 3 workers killed at once with {held} jobs locked: all have run "
        f"{time.monotonic() - began:.1f} s after the server's return"
    )
    assert held >= 5
    assert all(worker.end() == -signal.SIGKILL for worker in fallen)
    assert set(ran(*fallen, *risen)) <= adder.acked | adder.unsure | set(range(5))
    field.check_alive(*risen)


# A disk without room


class Disk:
    """A small one in memory, for the server; skips the test where nothing can be mounted."""

    def __init__(self, megabytes: int) -> None:
        self._size = f"{megabytes}m"
        self.folder = Path(tempfile.mkdtemp(prefix="gwdisk-"))
        self._ballast = self.folder / "ballast"

    def __enter__(self) -> Self:
        owner = get_unprivileged_user()
        settings = f"size={self._size},mode=0700"
        if owner:
            settings += f",uid={owner['user']},gid={owner['group']}"
        command = ["mount", "-t", "tmpfs", "-o", settings, "tmpfs", str(self.folder)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            self.folder.rmdir()
            pytest.skip(f"cannot mount a file system: {done.stderr.strip()}")
        return self

    def __exit__(self, *error: object) -> None:
        # A server that a failed test has left may still use it.
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)
        self.folder.rmdir()

    def fill(self) -> None:
        """To the last page."""
        with self._ballast.open("wb", buffering=0) as ballast, suppress(OSError):
            while True:
                ballast.write(bytes(os.sysconf("SC_PAGE_SIZE")))
        assert shutil.disk_usage(self.folder).free == 0

    def make_room(self) -> None:
        self._ballast.unlink()

    def take(self, folder: Path) -> None:
        """That folder of a server lies here from now on."""
        shutil.copytree(folder, self.folder / folder.name)
        shutil.rmtree(folder)
        folder.symlink_to(self.folder / folder.name)
        give_to_server(self.folder / folder.name)


def give_to_server(path: Path) -> None:
    owner = get_unprivileged_user()
    if owner:
        for each in (path, *path.rglob("*")):
            os.chown(each, owner["user"], owner["group"])


def data_of(server: Server) -> Path:
    return server.log.parent / "data"


def rate(said: Callable[[], int], count: int = 6) -> float:
    """Return the rate of repeated log lines, after the first and quickest ones."""
    eventually(lambda: said() >= count, "it is logged again and again")
    began, first = time.monotonic(), said()
    eventually(lambda: said() >= first + count, "it is logged again and again")
    return (said() - first) / (time.monotonic() - began)


def add_until_refused(field: Field) -> None:
    while True:
        field.add(1)


def test_a_full_disk_raises_for_add_job_and_delays_waiting_jobs(field, server, figure):
    with Disk(8) as disk:
        with field.sql() as sql:
            sql.run(f"create tablespace small location '{disk.folder}'")
            sql.run("alter table :schema._private_jobs set tablespace small")
        busy = field.start("--no-local-queue")
        field.add(1, "stay")
        eventually(lambda: "began 0" in busy.out, "it runs")

        disk.fill()
        with pytest.raises(psycopg.errors.DiskFull, match="No space left on device"):
            add_until_refused(field)
        worker = field.start("-j", "5")
        worker.wait_for_line("fetch failed, retrying: DiskFull")
        asked = rate(lambda: server.log.read_text().count("could not extend file"))
        # A completion takes no space.
        field.let_go_on()
        busy.wait_for_line("completed job 1 (stay)")

        disk.make_room()
        seconds = field.seconds_to_the_next_job(worker, busy)
        field.wait_for_all(worker, busy)
        figure(
            f"disk full: {asked:.1f} refusals a second, first job {seconds:.2f} s after there was "
            "room again"
        )
        assert asked < GENTLE
        assert seconds < SOON
        field.check_alive(worker, busy)
        server.crash()


def test_a_full_disk_of_the_log_stops_the_server_and_no_worker(field, server, figure):
    # It would start itself again, and might go on for a while in the segments that it has.
    server.run("alter system set restart_after_crash = off")
    with Disk(96) as disk:
        server.shut_down()
        disk.take(data_of(server) / "pg_wal")
        server.launch()
        worker = field.start("-j", "5")
        with Adder(field.database) as adder:
            adder.wait_for_more(100)
            disk.fill()
            eventually(lambda: gives_up(server), "the server gives up")
            worker.wait_for_line("database unreachable")

            disk.make_room()
            server.launch()
            seconds = field.seconds_to_the_next_job(worker)
            adder.wait_for_more(50)

        field.wait_for_these(adder.acked, worker)
        figure(f"disk of the log full: first job {seconds:.2f} s after the server's return")
        assert "PANIC" in server.log.read_text()
        assert seconds < SOON
        field.check_alive(worker)
        server.crash()


def gives_up(server: Server) -> bool:
    """Is it gone? If not, let it begin another segment of its log."""
    with suppress(psycopg.Error):
        server.run("select pg_logical_emit_message(true, '', ''); select pg_switch_wal()")
    return not server.is_running


# No more transaction ids

# The number of transactions in one file of pg_xact.
STATES = 8192 * 4 * 32

# The server gives none of the last three million ids before the oldest would come round again.
LAST = 2**31 - 1_000_000


def use_up_ids(server: Server) -> None:
    """Set the server to the state after 2,000,000,000 transactions with an unread slot."""
    server.run("select pg_create_logical_replication_slot('forgotten', 'pgoutput')")
    server.shut_down()
    states = data_of(server) / "pg_xact" / f"{LAST // STATES:04X}"
    states.write_bytes(bytes(STATES // 4))
    give_to_server(states)
    # Where the user of the server can run it.
    program = shutil.copy(client_program("pg_resetwal"), server.log.parent)
    command = [program, "--next-transaction-id", str(LAST), "-D", str(data_of(server))]
    subprocess.run(command, check=True, capture_output=True, cwd="/", **get_unprivileged_user())
    server.launch()


def free_ids(server: Server) -> None:
    """Let the vacuum of the server free ids."""
    server.run("select pg_drop_replication_slot('forgotten')")


def gives_ids(server: Server) -> bool:
    try:
        return bool(server.value("select pg_current_xact_id()::text"))
    except psycopg.errors.ProgramLimitExceeded:
        return False


def test_without_transaction_ids_add_job_raises_and_work_continues_later(field, server, figure):
    if server.major != 18:
        pytest.skip("pg_resetwal is only there for PostgreSQL 18")
    worker = field.start("-j", "5", GRAPHILE_LOGGER_DEBUG="1")
    field.add(1, "stay")
    eventually(lambda: "began 0" in worker.out, "it runs")
    # Paused, so that it finds jobs when no ids are left: a fetch without jobs
    # needs none.
    worker.signal(signal.SIGSTOP)
    field.add(50, queues=5)

    use_up_ids(server)
    worker.signal(signal.SIGCONT)
    refused = "not accepting commands that assign new transaction IDs"
    with pytest.raises(psycopg.errors.ProgramLimitExceeded, match=refused):
        field.add(1)
    worker.wait_for_line(f"fetch failed, retrying: ProgramLimitExceeded: database is {refused}")
    field.let_go_on()
    worker.wait_for_line("completeJob failed, retrying: ProgramLimitExceeded")
    asked = rate(lambda: worker.err.count(refused), 12)

    free_ids(server)
    eventually(lambda: gives_ids(server), "the server has vacuumed")
    seconds = field.seconds_to_the_next_job(worker)
    field.wait_for_all(worker)
    figure(
        f"no transaction ids left: {asked:.1f} refusals a second, first job {seconds:.2f} s after "
        "the server gave some again"
    )
    assert asked < GENTLE
    assert seconds < SOON
    assert ran(worker)[0] == 1
    field.check_alive(worker)
