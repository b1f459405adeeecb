"""Debian's PgBouncer 1.18: in transaction mode no session outlives a transaction."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

import pytest

from tests.support.cluster import Cluster, free_port, get_unprivileged_user
from tests.support.tools import TOOLS

PROGRAM = TOOLS / "pgbouncer" / "usr" / "sbin" / "pgbouncer"
LIBRARIES = [TOOLS / "pgbouncer" / part / "x86_64-linux-gnu" for part in ("usr/lib", "lib")]

SETTINGS = """
[databases]
* = host=127.0.0.1 port={server} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {size}
"""


class PgBouncer:
    """One in front of a server, which may be stopped and started again."""

    def __init__(self, cluster: Cluster, mode: str = "transaction", *, size: int = 5) -> None:
        if not PROGRAM.exists():
            pytest.skip("PgBouncer is not installed: run tools/pgbouncer")
        self.port = free_port()
        self._folder = Path(tempfile.mkdtemp(prefix="gwpgb-"))
        self._settings = self._folder / "pgbouncer.ini"
        self._settings.write_text(
            SETTINGS.format(server=cluster.port, port=self.port, mode=mode, size=size)
        )
        # It does not run as root, and must be able to read them.
        self._folder.chmod(0o755)
        self._settings.chmod(0o644)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        shutil.rmtree(self._folder)

    def start(self) -> None:
        self._process = subprocess.Popen(
            [str(PROGRAM), "-q", str(self._settings)],
            env={**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, LIBRARIES))},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            **get_unprivileged_user(),
        )
        _wait_for(self.port)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait(timeout=10)


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise TimeoutError("PgBouncer did not start")
