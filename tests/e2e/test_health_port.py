"""The health port of a worker: its address, its text, and slow clients."""

import json
import time
import urllib.request
from pathlib import Path

import pytest

from graphile_worker._cli.http_server import MAX_CONNECTIONS
from tests.support.cluster import free_port
from tests.support.health import status
from tests.support.processes import Program, eventually
from tests.support.tiers import size

NOTE = """
    async def task(payload, ctx):
        ctx.logger.info(f"done {payload['number']}")
"""

CLIENTS = size(gate=300, nightly=2000)
SECONDS = size(gate=6.0, nightly=60.0)
ANSWER_WITHIN = size(gate=10.0, nightly=1.0)

# File descriptors that a worker may open for itself meanwhile: connections to its database.
OWN = 30

# Each client sends a byte of a header every second or so, and connects again when it is closed.
SLOW_CLIENTS = """
    import resource
    import socket
    import sys
    import time

    port, number = map(int, sys.argv[1:])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def connected():
        client = socket.create_connection(("127.0.0.1", port), timeout=5)
        client.sendall(b"GET /livez HTTP/1.1\\r\\nX: ")
        client.setblocking(False)
        return client

    def went_on(client):
        try:
            client.send(b"a")
            return client.recv(1) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    clients = [None] * number
    while True:
        began = time.monotonic()
        for at, client in enumerate(clients):
            if client is not None and went_on(client):
                continue
            if client is not None:
                client.close()
            try:
                clients[at] = connected()
            except OSError:
                clients[at] = None
        print(sum(client is not None for client in clients), flush=True)
        time.sleep(max(0, began + 1 - time.monotonic()))
"""


@pytest.fixture
def noting(programs):
    """Programs in a folder with one task, `note`."""
    programs.write("tasks/note.py", NOTE)
    return programs


@pytest.mark.timeout(180)
def test_slow_clients_of_the_health_port_neither_stop_probes_nor_use_up_a_worker(
    noting, sql, record_property
):
    port = free_port()
    worker = noting.worker("--health-port", str(port))
    before, threads_before = files(worker), threads(worker)
    slow = noting.python(SLOW_CLIENTS, str(port), str(CLIENTS))
    eventually(lambda: str(CLIENTS) in slow.out.split(), "all slow clients have connected")

    most_files, slowest, number = 0, 0.0, 0
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        for path in ("/livez", "/readyz"):
            began = time.monotonic()
            assert status(port, path) == 200
            slowest = max(slowest, time.monotonic() - began)
        most_files = max(most_files, files(worker))
        sql.run("select :schema.add_job('note', $1::text::json)", json.dumps({"number": number}))
        worker.wait_for_line(f"done {number}")
        number += 1

    assert slow.is_running, slow.err
    assert most_files <= before + MAX_CONNECTIONS + OWN
    assert threads(worker) <= threads_before + 2
    assert slowest < ANSWER_WITHIN
    assert worker.stop() == 0
    assert "Traceback" not in worker.err
    record_property(
        "figure",
        f"{CLIENTS} slow health clients for {SECONDS:.0f} s: slowest of {2 * number} probes "
        f"{slowest * 1000:.0f} ms, {most_files} file descriptors ({before} before)",
    )


def files(worker: Program) -> int:
    return len(list(Path(f"/proc/{worker.pid}/fd").iterdir()))


def threads(worker: Program) -> int:
    return len(list(Path(f"/proc/{worker.pid}/task").iterdir()))


def test_health_port_listens_on_this_machine_only_unless_a_host_is_set(noting):
    port = free_port()

    def answers(host: str) -> int | None:
        try:
            return status(port, "/livez", host)
        except OSError:
            return None

    def served(*flags: str, **variables: str) -> list[int | None]:
        worker = noting.command("--health-port", str(port), *flags, **variables)
        eventually(lambda: answers("127.0.0.1") or answers("127.0.0.2"), "it serves")
        found = [answers(host) for host in ("127.0.0.1", "127.0.0.2")]
        worker.stop()
        return found

    assert served() == [200, None]
    assert served("-p", "1", "--health-host", "127.0.0.2") == [None, 200]
    assert served(GRAPHILE_WORKER_HEALTH_HOST="::") == [200, 200]


@pytest.mark.parametrize("flags", [(), ("--processes", "1")], ids=["worker", "supervisor"])
def test_readyz_verbose_reports_the_verdict_of_the_queue(noting, sql, flags):
    port = free_port()
    noting.worker("--health-port", str(port), *flags)
    sql.run("select :schema.add_job('note', max_attempts => 1)")
    sql.run("update :schema._private_jobs set attempts = 1")
    eventually(lambda: status(port, "/readyz") == 200, "the worker is ready")

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz?verbose", timeout=20) as response:
        lines = response.read().decode().splitlines()

    assert lines[:2] == ["ok", "verdict: degraded"]
    assert lines[2].startswith("warning permanently-failed: 1 job failed permanently, ")


def test_a_health_host_that_this_machine_does_not_have_is_one_error_line(noting):
    port = str(free_port())

    done = noting.run_to_end("--health-port", port, "--health-host", "192.0.2.1")

    assert done.code == 1
    assert done.err.startswith(f"graphile-worker: cannot listen on 192.0.2.1 port {port}: ")
    assert done.err.count("\n") == 1
