"""The network namespaces of the laboratory: what a program sees when its cable is cut."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.laboratory.namespaces import Namespace
from tests.support.processes import INSTALLED, READY, Program, Programs, eventually
from tests.support.proxy import Proxy

# Prints the outcome of reads and of new connections, following the commands on its input.
CLIENT = """
import socket
import sys

address = sys.argv[1], int(sys.argv[2])


def outcome_of(act):
    try:
        return act()
    except OSError as error:
        return type(error).__name__ if error.errno is None else error.strerror


old = socket.create_connection(address, timeout=10)
print("connected", flush=True)
for line in sys.stdin:
    match line.strip():
        case "ask":
            old.settimeout(5)
            old.sendall(b"x")
            print(outcome_of(lambda: old.recv(1)), flush=True)
        case "read":
            old.settimeout(20)
            print(outcome_of(lambda: old.recv(1)), flush=True)
        case "connect":
            made = outcome_of(lambda: socket.create_connection(address, timeout=5))
            print(made if isinstance(made, str) else "connected", flush=True)
"""


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    with Namespace() as namespace:
        yield namespace


class Client:
    """A program in the namespace and its server outside, which returns what it gets."""

    def __init__(self, namespace: Namespace) -> None:
        self._server = namespace.listen()
        port = self._server.getsockname()[1]
        command = [sys.executable, "-c", CLIENT, namespace.outside, str(port)]
        self._program = subprocess.Popen(
            namespace.inside(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.server, _ = self._server.accept()
        self.server.settimeout(20)
        assert self.listen() == "connected"

    def tell(self, word: str) -> str:
        assert self._program.stdin is not None
        self._program.stdin.write(f"{word}\n")
        self._program.stdin.flush()
        return self.listen()

    def listen(self) -> str:
        assert self._program.stdout is not None
        return self._program.stdout.readline().strip()

    def close(self) -> None:
        self._program.kill()
        self._program.communicate()
        self.server.close()
        self._server.close()


@pytest.fixture
def client(namespace) -> Iterator[Client]:
    client = Client(namespace)
    yield client
    client.close()


@pytest.mark.parametrize(
    ("fault", "new_ones"),
    [
        (Namespace.link_down, "Network is unreachable"),
        (Namespace.blackhole_route, "Invalid argument"),
        (Namespace.partition, "TimeoutError"),
    ],
)
def test_a_fault_silences_connections_until_it_heals(namespace, client, fault, new_ones):
    fault(namespace)

    assert client.tell("ask") == "TimeoutError"
    assert client.tell("connect") == new_ones

    namespace.heal()
    # Bytes that were sent meanwhile arrive, because TCP sends them again.
    assert client.server.recv(1) == b"x"
    client.server.sendall(b"y")
    assert client.tell("read") == "b'y'"
    assert client.tell("connect") == "connected"


def test_a_program_that_receives_nothing_can_still_send(namespace, client):
    namespace.deafen()

    assert client.tell("ask") == "TimeoutError"
    assert client.server.recv(1) == b"x"
    assert client.tell("connect") == "TimeoutError"

    namespace.heal()
    assert client.tell("connect") == "connected"


def test_two_namespaces_are_apart():
    with Namespace() as one, Namespace() as other:
        first, second = Client(one), Client(other)
        one.partition()
        assert first.tell("connect") == "TimeoutError"
        assert second.tell("connect") == "connected"
        first.close()
        second.close()


def test_a_namespace_adds_no_interface_to_the_machine_and_leaves_nothing():
    with Namespace() as namespace:
        assert namespace.name in _listing("netns", "list")
        assert namespace.name not in _listing("link", "show")

    assert namespace.name not in _listing("netns", "list")


def _listing(*words: str) -> str:
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=True).stdout


@pytest.mark.single_version
@pytest.mark.timeout(120)
def test_a_worker_continues_after_its_cable_was_cut(namespace, database, tmp_path, sql):
    with (
        Proxy(database.cluster.port, namespace.listen()) as gate,
        Programs.for_database(database, tmp_path) as programs,
    ):
        programs.write("tasks/note.py", "def task(payload, ctx):\n    pass\n")
        address = f"postgres://postgres@{namespace.outside}:{gate.port}/{database.name}"
        worker = programs.start(namespace.inside([INSTALLED]), {"DATABASE_URL": address})
        worker.wait_for_line(READY)
        _run_a_job(worker, sql)

        namespace.partition()
        sql.run("select :schema.add_job('note')")
        worker.wait_for_line("database unreachable")
        namespace.heal()

        _wait_until_done(worker, sql)
        assert worker.stop() == 0


def _run_a_job(worker: Program, sql) -> None:
    sql.run("select :schema.add_job('note')")
    _wait_until_done(worker, sql)


def _wait_until_done(worker: Program, sql) -> None:
    left = "select count(*) from :schema._private_jobs"
    eventually(lambda: sql.value(left) == 0, f"the job is done: {worker.err}")
