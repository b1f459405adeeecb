"""Servers that crash, restart and fail over on purpose, and keep what they have acknowledged.

A program keeps one DSN for the whole run: both ports of a pair, of which libpq takes the one that
can be written to.
"""

import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import psycopg
from psycopg.conninfo import make_conninfo

from tests.support.cluster import SERVER_SETTINGS, Cluster, get_unprivileged_user
from tests.support.processes import eventually
from tests.support.tools import client_program

# A crash here is one of processes and not of the machine, so nothing needs to be flushed. What is
# on the command line cannot be changed later: how a commit waits is left to `alter system`.
LASTING = (
    "fsync=off",
    "full_page_writes=off",
    # Goes away with the folder, however the server ends.
    "dynamic_shared_memory_type=mmap",
    "wal_level=replica",
    "wal_keep_size=512MB",
    # How soon a standby looks again for a primary that was unreachable.
    "wal_retrieve_retry_interval=100ms",
)

# Below the range of outgoing connections. Otherwise a client of a stopped server could get its port
# as the local one, and connect to itself.
PORTS = range(20_000, 32_000)

STANDBY = "standby"

# The database of a run.
DATABASE = "laboratory"
SCHEMA = "graphile_worker"


@dataclass(frozen=True)
class Position:
    """A point of the write-ahead log."""

    bytes: int

    @classmethod
    def parse(cls, text: str) -> Self:
        high, low = text.split("/")
        return cls((int(high, 16) << 32) + int(low, 16))

    def __str__(self) -> str:
        return f"{self.bytes >> 32:X}/{self.bytes & 0xFFFFFFFF:X}"

    def __le__(self, other: "Position") -> bool:
        return self.bytes <= other.bytes

    def __lt__(self, other: "Position") -> bool:
        return self.bytes < other.bytes


@dataclass(frozen=True)
class Promotion:
    """The promotion of a standby. Only commits that it had replayed exist afterwards."""

    timeline: int
    replayed: Position
    """A commit that ends here or before is there; one after it is lost."""
    last_commit: datetime | None
    """When the newest transaction that was replayed was committed, by the old primary's clock."""
    began: float
    """When the old primary was killed, by the monotonic clock."""
    ended: float
    """When the new one could be written to."""


class Server(Cluster):
    """One server on a port for life; its data may be replaced."""

    def __init__(self, major: int, settings: Sequence[str] = ()) -> None:
        super().__init__(major)
        self.port = lasting_port()
        self._settings = [*LASTING, *SERVER_SETTINGS, *settings]

    @property
    def is_running(self) -> bool:
        return hasattr(self, "_server") and self._server.poll() is None

    def crash(self) -> None:
        """Kill it at once; clients get no message."""
        self._end(signal.SIGQUIT)

    def shut_down(self) -> None:
        """Shut it down; clients get a message, and all data is written."""
        self._end(signal.SIGINT)

    def stop(self) -> None:
        try:
            # The data is not needed any more, and a fast shutdown could wait for a standby.
            self._end(signal.SIGQUIT)
        finally:
            shutil.rmtree(self._base, ignore_errors=True)

    def follow(self, primary: "Server") -> None:
        """Become a standby of that server, with a copy of its data."""
        assert not self.is_running
        data = self._base / "data"
        shutil.rmtree(data, ignore_errors=True)
        source = primary.dsn(application_name=STANDBY)
        command = [str(client_program("pg_basebackup")), "-D", str(data), "-d", source]
        command += ["--wal-method", "stream", "--checkpoint", "fast", "--no-sync"]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/")
        if done.returncode:
            raise RuntimeError(done.stderr)
        # The program would write options that servers older than itself do not know.
        (data / "standby.signal").touch()
        with (data / "postgresql.auto.conf").open("a") as settings:
            settings.write(f"primary_conninfo = '{source}'\n")
        # Only the present user may be able to read the program, so it ran as that user.
        _give_to_the_server(self._base)
        self.launch()

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def value(self, statement: str) -> Any:
        return self.run(statement)[0][0]

    def set(self, **settings: str) -> None:
        """Change settings; in force in new statements soon after."""
        for name, value in settings.items():
            self.run(f"alter system set {name} = '{value}'")
        self.run("select pg_reload_conf()")

    def fork(self) -> tuple[int, Position]:
        """Its timeline, and where that left the one before."""
        newest = max((self._base / "data" / "pg_wal").glob("*.history"))
        # The parent and the place, one line for each timeline before.
        _, place, *_ = newest.read_text().rstrip().splitlines()[-1].split()
        return int(newest.stem, 16), Position.parse(place)

    def _end(self, how: signal.Signals) -> None:
        self._disconnect()
        if not self.is_running:
            return
        self._server.send_signal(how)
        try:
            self._server.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait(timeout=30)


class Primary:
    """A server alone; what it has acknowledged outlives its crashes."""

    def __init__(self, major: int, settings: Sequence[str] = ()) -> None:
        self.primary = Server(major, settings)
        self._servers = [self.primary]

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()

    def _start(self) -> None:
        self.primary.start()

    def _stop(self) -> None:
        with ExitStack() as stack:
            for server in self._servers:
                stack.callback(server.stop)

    @property
    def ports(self) -> list[int]:
        """The ports of all servers, whichever is the primary."""
        return [server.port for server in self._servers]

    def dsn(
        self, database: str = "postgres", ports: Sequence[int] | None = None, **more: str
    ) -> str:
        """Return a DSN for the whole run; `ports` may be those of proxies."""
        ports = ports or self.ports
        return make_conninfo(
            host=",".join("127.0.0.1" for _ in ports),
            port=",".join(map(str, ports)),
            user="postgres",
            dbname=database,
            target_session_attrs="read-write",
            **more,
        )

    def url(self, database: str = "postgres", ports: Sequence[int] | None = None) -> str:
        """Return `dsn` as a URL."""
        ports = ports or self.ports
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        return f"postgres://postgres@{hosts}/{database}?target_session_attrs=read-write"

    def create_database(self, name: str, template: str = "template0") -> None:
        self.primary.create_database(name, template)

    def crash_restart(self, away: float = 0.0) -> None:
        """Crash the primary, and start it again after some seconds."""
        self.primary.crash()
        time.sleep(away)
        self.primary.launch()

    def fast_restart(self, away: float = 0.0) -> None:
        """Shut the primary down, and start it again after some seconds."""
        self.primary.shut_down()
        time.sleep(away)
        self.primary.launch()


class Pair(Primary):
    """A primary and its streaming standby, which change places at each promotion."""

    def __init__(self, major: int, settings: Sequence[str] = ()) -> None:
        super().__init__(major, settings)
        self.standby = Server(major, settings)
        self._servers.append(self.standby)
        self._wait = ""

    def _start(self) -> None:
        super()._start()
        self.rebuild_standby()

    @property
    def is_synchronous(self) -> bool:
        return bool(self._wait)

    def synchronize(self, commits: str = "on") -> None:
        """From now on a commit is acknowledged when the standby has, or (`remote_apply`) shows it.

        Earlier commits are on the standby, too. A commit that is canceled while it waits returns
        with a warning: the primary has it, and the standby may not have it.
        """
        self._wait = commits
        self.primary.set(synchronous_commit=commits, synchronous_standby_names=STANDBY)
        self._wait_for_standby("sync")

    def desynchronize(self) -> None:
        """From now on a commit is acknowledged when the primary has it."""
        self._wait = ""
        self.primary.set(synchronous_commit="on", synchronous_standby_names="")
        if self.primary.is_running:
            self._wait_for_setting("synchronous_standby_names", "")

    def rebuild_standby(self) -> None:
        """The server that is not the primary becomes its standby, and has all that there is.

        A pair that was synchronous is so again.
        """
        self.standby.crash()
        self.standby.follow(self.primary)
        if self._wait:
            self.synchronize(self._wait)
        else:
            self._wait_for_standby("async")

    def promote(self) -> Promotion:
        """Kill the primary and promote its standby; call `rebuild_standby` afterwards.

        If it is synchronous, nothing that was acknowledged is lost.
        """
        if self._wait:
            self._wait_for_standby("sync")
        return self._fail_over()

    def detach_standby(self) -> Position:
        """Detach the standby; it gets no commits after this returns."""
        self.desynchronize()
        self.standby.set(primary_conninfo="")
        eventually(
            lambda: not self.standby.run("select from pg_stat_wal_receiver where pid is not null"),
            "the standby stops to receive",
        )
        return Position.parse(self.standby.value("select pg_last_wal_replay_lsn()::text"))

    def promote_with_lost_tail(self, write: Callable[[], object]) -> Promotion:
        """Detach the standby, let the primary `write`, kill it and promote the standby.

        What was committed after the promotion's `replayed` is lost.
        """
        self.detach_standby()
        write()
        return self._fail_over()

    def _fail_over(self) -> Promotion:
        began = time.monotonic()
        self.primary.crash()
        # The new primary has no standby yet: with the old one's settings, its commits would wait.
        self.standby.set(synchronous_standby_names="", synchronous_commit="on")
        last_commit = self.standby.value("select pg_last_xact_replay_timestamp()")
        assert self.standby.value("select pg_promote(true, 60)")
        self.primary, self.standby = self.standby, self.primary
        timeline, replayed = self.primary.fork()
        return Promotion(timeline, replayed, last_commit, began, time.monotonic())

    def _wait_for_standby(self, state: str) -> None:
        """Wait until the standby has replayed all commits, and has this state."""
        now = self.primary.value("select pg_current_wal_flush_lsn()::text")
        found = (
            f"select true from pg_stat_replication where application_name = '{STANDBY}' "
            f"and sync_state = '{state}' and replay_lsn >= '{now}'"
        )
        eventually(lambda: self.primary.run(found), f"the standby is {state} and has all to {now}")

    def _wait_for_setting(self, name: str, value: str) -> None:
        # A new session has read the files; those that are there follow at their next statement.
        eventually(
            lambda: self.primary.value(f"select current_setting('{name}')") == value,
            f"{name} is {value!r}",
        )


def lasting_port() -> int:
    """Return a free port that no other program gets by chance while its server is stopped."""
    ports = random.SystemRandom()
    while True:
        port = ports.choice(PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _give_to_the_server(folder: Path) -> None:
    identity = get_unprivileged_user()
    if not identity:
        return
    for root, _, names in os.walk(folder):
        for path in (root, *(os.path.join(root, name) for name in names)):
            os.chown(path, identity["user"], identity["group"])
