"""Throw-away PostgreSQL clusters: initdb, start, stop, gone; never as root."""

import fcntl
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from tests.support.tools import server_bin

# The data of a test need not survive the machine: leave out every flush.
NO_FLUSH_SETTINGS = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")
SERVER_SETTINGS = (
    "max_connections=200",
    # Dropping a schema with hundreds of functions takes a lock on each, while other tests run.
    "max_locks_per_transaction=256",
    "log_min_messages=warning",
    "timezone=UTC",
)
MEMORY = Path("/dev/shm")

# Names the folder in which a run keeps the data of new servers: to copy it takes 5 % of initdb.
NEW_DATA_FOLDER = "GW_NEW_DATA_FOLDER"

# Below those that Linux, macOS and Windows give to clients.
SERVER_PORTS = (10_000, 32_000)


class Cluster:
    """One server of one major version, its data in memory or in a folder of its own in `folder`."""

    def __init__(
        self, major: int, settings: Sequence[str] = (), folder: Path | None = None
    ) -> None:
        self.major = major
        self._bin = server_bin(major)
        self._settings = [*NO_FLUSH_SETTINGS, *SERVER_SETTINGS, *settings]
        if folder is None and MEMORY.exists():
            folder = MEMORY
        self._base = Path(tempfile.mkdtemp(prefix="gwpg-", dir=folder))
        self.log = self._base / "log"
        self.port = free_port()
        self._connection: psycopg.Connection | None = None

    def start(self) -> "Cluster":
        identity = get_unprivileged_user()
        if identity:
            os.chown(self._base, identity["user"], identity["group"])
        self._initdb(identity)
        return self.launch()

    def launch(self) -> "Cluster":
        """Start the server, at first or again; it is ready when this returns."""
        identity = get_unprivileged_user()
        command = [str(self._bin / "postgres"), "-D", str(self._base / "data")]
        command += ["-p", str(self.port), "-k", str(self._base), "-h", "127.0.0.1"]
        command += [part for setting in self._settings for part in ("-c", setting)]
        with self.log.open("a") as log:
            self._server = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, cwd="/", **identity
            )
        self._wait_until_ready()
        return self

    def halt(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server and keep its data: SIGINT is fast, SIGQUIT immediate, as in a crash."""
        self._disconnect()
        self._server.send_signal(how)
        self._server.wait(timeout=30)

    def stop(self) -> None:
        self._disconnect()
        if self._server.poll() is None:
            self.halt()
        shutil.rmtree(self._base, ignore_errors=True)

    def dsn(self, database: str = "postgres", **more: str) -> str:
        return make_conninfo(
            host="127.0.0.1", port=self.port, user="postgres", dbname=database, **more
        )

    def url(self, database: str = "postgres", scheme: str = "postgres") -> str:
        return f"{scheme}://postgres@127.0.0.1:{self.port}/{database}"

    def create_database(self, name: str, template: str = "template0") -> None:
        # Copying files is several times faster than copying through the write-ahead log.
        strategy = " strategy file_copy" if self.major >= 15 else ""
        self._admin(f'create database "{name}" template "{template}"{strategy}')

    def drop_database(self, name: str) -> None:
        self._admin(f'drop database if exists "{name}" with (force)')

    def _admin(self, statement: str) -> None:
        try:
            self._connect().execute(statement.encode())
        except psycopg.OperationalError:
            # A test has ended it, with others of the server.
            if self._connection is None or not self._connection.broken:
                raise
            self._disconnect()
            self._connect().execute(statement.encode())

    def _connect(self) -> psycopg.Connection:
        # Kept, as most tests have a database made and dropped: that takes less than to connect.
        if self._connection is None:
            self._connection = psycopg.connect(self.dsn(), autocommit=True)
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _initdb(self, identity: dict[str, Any]) -> None:
        kept = os.environ.get(NEW_DATA_FOLDER)
        if kept is None:
            _run(self._initdb_command(self._base / "data"), identity)
            return
        data = Path(kept) / str(self.major)
        with Path(kept, f"{self.major}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not data.exists():
                unfinished = data.with_suffix(".unfinished")
                _run(self._initdb_command(unfinished), identity)
                unfinished.rename(data)
        _run(["cp", "-Rp", str(data), str(self._base / "data")], identity)

    def _initdb_command(self, folder: Path) -> list[str]:
        command = [str(self._bin / "initdb"), "-D", str(folder), "-U", "postgres"]
        return [*command, "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"]

    def _wait_until_ready(self) -> None:
        pidfile = self._base / "data" / "postmaster.pid"
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if self._server.poll() is not None:
                raise RuntimeError(self.log.read_text())
            # The eighth line of the pid file is the server's own word for its state.
            lines = pidfile.read_text().split("\n") if pidfile.exists() else []
            if len(lines) > 7 and lines[7].strip() == "ready":
                return
            time.sleep(0.005)
        raise TimeoutError(f"PostgreSQL {self.major} did not start")


@contextmanager
def kept_new_data() -> Iterator[None]:
    """Run initdb once per major version in this process and those that it starts."""
    identity = get_unprivileged_user()
    folder = tempfile.mkdtemp(prefix="gwpg-new-", dir=MEMORY if MEMORY.exists() else None)
    if identity:
        os.chown(folder, identity["user"], identity["group"])
    os.environ[NEW_DATA_FOLDER] = folder
    try:
        yield
    finally:
        del os.environ[NEW_DATA_FOLDER]
        shutil.rmtree(folder, ignore_errors=True)


def _run(command: list[str], identity: dict[str, Any]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", **identity)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)


def get_unprivileged_user() -> dict[str, Any]:
    """Return Popen arguments for a user that the server accepts; it does not run as root."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    raise RuntimeError("neither a user postgres nor a user nobody: where shall the server run?")


def free_port() -> int:
    """A port without a listener, outside the range from which outgoing connections get theirs.

    An outgoing connection could take a port of that range before the server has started.
    """
    while True:
        port = random.SystemRandom().randrange(*SERVER_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def server_of(cluster: Cluster) -> dict[str, str]:
    """Return the variables of libpq that name the server, without a database."""
    return {"PGHOST": "127.0.0.1", "PGPORT": str(cluster.port), "PGUSER": "postgres"}
