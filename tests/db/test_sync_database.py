"""Blocking code has one autocommit connection per thread, and no thread of ours."""

import gc
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from graphile_worker import JobSpec, sync
from graphile_worker._db.sync import SyncPsycopgDatabase
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.cron import get_server_time
from tests.conftest import TestDatabase
from tests.support.rows import count_jobs as jobs
from tests.support.sql import Sql

BACKENDS = """
select pid
from pg_stat_activity
where datname = current_database() and application_name = 'graphile-worker'
"""


@pytest.fixture
def client(blocking_client: sync.Client) -> sync.Client:
    return blocking_client


def backends(sql: Sql) -> set[int]:
    """The server's processes for connections of ours."""
    return {pid for (pid,) in sql.run(BACKENDS)}


def wait_until(condition: Callable[[], bool]) -> None:
    """A server process ends some time after its connection: there is no event to wait for."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def terminate_backends(sql: Sql) -> set[int]:
    gone = backends(sql)
    for pid in gone:
        sql.run("select pg_terminate_backend($1::int)", pid)
    wait_until(lambda: not backends(sql) & gone)
    return gone


@contextmanager
def thread_that_added(client: sync.Client) -> Iterator[threading.Thread]:
    """A thread that has added a job and stays until the block ends."""
    added, leave = threading.Event(), threading.Event()

    def work() -> None:
        client.add_job("task")
        added.set()
        leave.wait()

    thread = threading.Thread(target=work)
    thread.start()
    assert added.wait(10)
    yield thread
    leave.set()
    thread.join()


def test_a_client_that_is_not_used_opens_nothing(client: sync.Client, sql: Sql) -> None:
    assert backends(sql) == set()


def test_a_thread_keeps_its_connection(client: sync.Client, sql: Sql) -> None:
    client.add_job("task")
    first = backends(sql)

    client.add_jobs([JobSpec("task")] * 3)
    client.get_job(1)

    assert len(first) == 1
    assert backends(sql) == first


def open_database(database: TestDatabase) -> closing[SyncPsycopgDatabase]:
    schemas = Schemas.from_names(database.schema)
    return closing(SyncPsycopgDatabase(database.dsn, schemas))


def read_pid(db: SyncPsycopgDatabase) -> int:
    with db.connection() as connection:
        connection.run(get_server_time())
        return connection.raw.info.backend_pid


def test_a_query_inside_a_transaction_of_its_thread_has_a_separate_connection(
    database: TestDatabase, sql: Sql
) -> None:
    with open_database(database) as db:
        with db.transaction() as outer:
            started_at = outer.run(get_server_time())
            pid = outer.raw.info.backend_pid

            assert pid not in {read_pid(db), read_pid(db)}
            assert outer.run(get_server_time()) >= started_at
        wait_until(lambda: backends(sql) == {pid})

        assert read_pid(db) == pid


def test_a_connection_that_was_left_in_a_transaction_is_replaced(
    database: TestDatabase, sql: Sql
) -> None:
    with open_database(database) as db:
        with db.connection() as connection:
            connection.raw.execute("begin")
        left = backends(sql)

        replacement = read_pid(db)

        assert replacement not in left
        wait_until(lambda: backends(sql) == {replacement})
        assert read_pid(db) == replacement


def test_each_thread_has_a_separate_connection(client: sync.Client, sql: Sql) -> None:
    client.add_job("task")
    ours = backends(sql)

    with thread_that_added(client):
        both = backends(sql)

    assert len(ours) == 1
    assert len(both) == 2
    assert ours < both


def test_the_connection_of_a_thread_ends_with_it(client: sync.Client, sql: Sql) -> None:
    client.add_job("task")
    ours = backends(sql)

    with thread_that_added(client):
        pass
    gc.collect()

    wait_until(lambda: backends(sql) == ours)


def test_clients_do_not_share_connections(database: TestDatabase, sql: Sql) -> None:
    with (
        sync.Client(database.dsn, schema=database.schema) as one,
        sync.Client(database.dsn, schema=database.schema) as other,
    ):
        one.add_job("task")
        other.add_job("task")

        assert len(backends(sql)) == 2


def test_calls_do_not_start_threads(client: sync.Client) -> None:
    before = threading.enumerate()

    client.add_job("task")

    assert threading.enumerate() == before


@pytest.mark.feature("F51")
@pytest.mark.parametrize("ending", ["close", "release"])
def test_close_ends_the_connections_of_all_threads(
    ending: str, client: sync.Client, sql: Sql
) -> None:
    client.add_job("task")
    with thread_that_added(client):
        getattr(client, ending)()

        wait_until(lambda: not backends(sql))


@pytest.mark.feature("F51")
def test_a_with_block_closes_the_client(database: TestDatabase, sql: Sql) -> None:
    with sync.Client(database.dsn, schema=database.schema) as client:
        client.add_job("task")

    wait_until(lambda: not backends(sql))


def test_a_closed_client_opens_again_with_its_next_call(client: sync.Client, sql: Sql) -> None:
    client.add_job("task")
    client.close()
    client.close()

    client.add_job("task")

    assert jobs(sql) == 2


def test_a_client_that_is_forgotten_takes_its_connection_along(
    database: TestDatabase, sql: Sql
) -> None:
    client = sync.Client(database.dsn, schema=database.schema)
    client.add_job("task")

    del client
    gc.collect()

    wait_until(lambda: not backends(sql))


def test_a_connection_that_the_server_ended_is_replaced_unseen(
    client: sync.Client, sql: Sql
) -> None:
    client.add_job("task")
    gone = terminate_backends(sql)

    client.add_job("task")

    assert jobs(sql) == 2
    assert len(gone) == 1
    assert not backends(sql) & gone


def test_a_connection_that_the_server_ended_is_replaced_in_every_thread(
    client: sync.Client, sql: Sql
) -> None:
    with ThreadPoolExecutor(4) as threads:
        together = threading.Barrier(4)
        list(threads.map(lambda _: (together.wait(), client.add_job("task")), range(4)))
        assert len(terminate_backends(sql)) == 4

        list(threads.map(lambda _: (together.wait(), client.add_job("task")), range(4)))

    assert jobs(sql) == 8


def test_migrations_and_cleanups_replace_a_connection_too(client: sync.Client, sql: Sql) -> None:
    client.add_job("task", queue_name="queue")
    sql.run("delete from :schema._private_jobs")
    terminate_backends(sql)
    client.cleanup(["GC_JOB_QUEUES"])
    terminate_backends(sql)

    client.migrate()

    assert sql.value("select count(*) from :schema._private_job_queues") == 0


def test_a_connection_that_was_idle_is_checked_before_it_is_used(
    database: TestDatabase, sql: Sql
) -> None:
    schemas = Schemas.from_names(database.schema)
    with Gateway(database.cluster.port) as gateway:
        through = make_conninfo(database.dsn, port=gateway.port)
        checked = SyncPsycopgDatabase(through, schemas, ping_after_idle_seconds=-1.0)
        with sync.Client(checked, schema=database.schema) as client:
            client.add_job("task")
            gateway.forget_connections()

            client.add_job("task")

    assert jobs(sql) == 2


def test_a_connection_that_was_just_used_is_not_checked(database: TestDatabase, sql: Sql) -> None:
    with Gateway(database.cluster.port) as gateway:
        through = make_conninfo(database.dsn, port=gateway.port)
        with sync.Client(through, schema=database.schema) as client:
            client.add_job("task")
            gateway.forget_connections()

            with pytest.raises(psycopg.OperationalError):
                client.add_job("task")

            client.add_job("task")

    assert jobs(sql) == 2


@pytest.mark.feature("F50")
def test_one_client_serves_many_threads(client: sync.Client, sql: Sql) -> None:
    def add_fifty(thread: int) -> list[int]:
        return [client.add_job("task", {"thread": thread, "n": n}).id for n in range(50)]

    with ThreadPoolExecutor(8) as threads:
        ids = [job_id for batch in threads.map(add_fifty, range(8)) for job_id in batch]

    assert len(set(ids)) == 400
    assert sql.value("select count(distinct payload::text) from :schema._private_jobs") == 400


def test_the_first_calls_of_many_threads_may_come_at_once(client: sync.Client, sql: Sql) -> None:
    together = threading.Barrier(8)

    def add(thread: int) -> int:
        together.wait()
        return client.add_job("new", queue_name="new").id

    with ThreadPoolExecutor(8) as threads:
        ids = list(threads.map(add, range(8)))

    assert len(set(ids)) == 8
    assert jobs(sql) == 8


def test_a_database_that_is_not_there_is_named_at_once(database: TestDatabase) -> None:
    elsewhere = database.cluster.dsn("nowhere")
    with (
        sync.Client(elsewhere, schema=database.schema) as client,
        pytest.raises(psycopg.OperationalError, match="nowhere"),
    ):
        client.add_job("task")


class Gateway:
    """A way to the server that can forget its connections, as firewalls do with idle ones.

    Nobody is told: only who sends something learns that the connection is gone.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._forgotten: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def forget_connections(self) -> None:
        self._forgotten = {near for near, _ in self._pairs}

    def __enter__(self) -> "Gateway":
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        for thread in self._threads[1:]:
            thread.join()
        for pair in self._pairs:
            for end in pair:
                end.close()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._target))
            self._pairs.append((near, far))
            for way in ((near, far), (far, near)):
                self._threads.append(threading.Thread(target=self._carry, args=way))
                self._threads[-1].start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        while data := _received(source):
            if source in self._forgotten:
                _reset(source)
                break
            target.sendall(data)
        _end(target)


def _received(source: socket.socket) -> bytes:
    try:
        return source.recv(65536)
    except OSError:
        return b""


def _reset(end: socket.socket) -> None:
    # Lingering for no time at all makes the close a reset.
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()


def _end(target: socket.socket) -> None:
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


class Interruption(Exception):
    """What a soft time limit raises out of a signal handler."""


def test_a_call_that_a_signal_cut_short_does_not_spoil_the_next(database, sql):
    def interrupt(*_: object) -> None:
        raise Interruption

    sql.run("begin")
    sql.run("lock table :schema._private_jobs in access exclusive mode")
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with sync.Client(database.dsn, schema=database.schema) as client:
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            with pytest.raises(Interruption):
                client.add_job("cut")
            sql.run("rollback")

            assert client.add_job("fine").task_identifier == "fine"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
