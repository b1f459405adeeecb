"""A function for the connection string: called for each new connection, off the event loop."""

import asyncio
import threading
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from graphile_worker import App, Client, ConfigurationError, RecoveryOptions, WorkerOptions, sync
from graphile_worker.events import JobSucceeded
from tests.conftest import TestDatabase
from tests.support.processes import eventually
from tests.support.recorder import wait_until
from tests.support.sql import Sql

SESSIONS = "select pid from pg_stat_activity where usename = $1 and datname = current_database()"


class Vault:
    """The current password of a role that logs in with SCRAM."""

    def __init__(self, sql: Sql, database: TestDatabase, role: str) -> None:
        self.role = role
        self.call_count = 0
        self.threads: set[threading.Thread] = set()
        self._sql = sql
        self._dsn = make_conninfo(database.dsn, user=role)
        self._password = "the first"

    def issue(self) -> str:
        self.call_count += 1
        self.threads.add(threading.current_thread())
        return make_conninfo(self._dsn, password=self._password)

    def change_password(self) -> None:
        """Change it and end all sessions of the role."""
        old_sessions = self.list_sessions()
        self._password = f"after {self.call_count} calls"
        self._sql.run(f"alter role {self.role} password '{self._password}'")
        self._sql.run(f"select pg_terminate_backend(pid) from ({SESSIONS}) as sessions", self.role)
        eventually(lambda: not self.list_sessions() & old_sessions, "the sessions have ended")

    def list_sessions(self) -> set[int]:
        return {pid for (pid,) in self._sql.run(SESSIONS, self.role)}

    def was_called(self, times: int) -> bool:
        return self.call_count >= times

    def is_guarded(self) -> bool:
        try:
            psycopg.connect(make_conninfo(self._dsn, password="wrong")).close()
        except psycopg.OperationalError:
            return True
        return False


@pytest.fixture
def vault(database: TestDatabase, sql: Sql, role: str) -> Iterator[Vault]:
    sql.run(f"alter role {role} superuser password 'the first'")
    rules = Path(sql.value("show hba_file"))
    before = rules.read_text()
    rules.write_text(f"host all {role} 127.0.0.1/32 scram-sha-256\n{before}")
    sql.run("select pg_reload_conf()")
    vault = Vault(sql, database, role)
    eventually(vault.is_guarded, "the server asks for a password")
    yield vault
    rules.write_text(before)
    sql.run("select pg_reload_conf()")


def test_a_blocking_client_calls_the_function_in_each_thread(vault, database):
    with sync.Client(vault.issue, schema=database.schema) as client:
        assert vault.call_count == 0
        for _ in range(2):
            client.add_job("work")
        assert vault.call_count == 1
        other = threading.Thread(target=client.add_job, args=("work",))
        other.start()
        other.join()
        assert vault.call_count == 2
        vault.change_password()
        client.add_job("work")

    assert vault.call_count == 3


async def test_an_async_client_calls_the_function_off_the_event_loop(vault: Vault, database):
    is_loop_free = threading.Event()

    def issue() -> str:
        # Only a free loop sets it.
        assert is_loop_free.wait(20)
        return vault.issue()

    client = Client(issue, schema=database.schema)
    asyncio.get_running_loop().call_later(0.01, is_loop_free.set)
    await client.add_job("work")
    vault.change_password()
    await client.add_job("work")
    await client.close()

    assert vault.call_count == 2
    assert threading.current_thread() not in vault.threads


async def test_a_cancelled_call_does_not_wait_for_the_function(database: TestDatabase):
    is_released, has_started = threading.Event(), threading.Event()

    def issue() -> str:
        has_started.set()
        is_released.wait(60)
        return database.dsn

    client = Client(issue, schema=database.schema)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await client.add_job("work")
    assert has_started.is_set()
    is_released.set()
    await client.close()


async def test_a_worker_reconnects_with_the_password_of_the_moment(vault, database, recorder):
    app = App(vault.issue, schema=database.schema)
    app.hooks.include(recorder.hooks)

    @app.task
    async def on_loop() -> None:
        await in_thread.aenqueue()

    @app.task
    def in_thread() -> None: ...

    recovery = RecoveryOptions(heartbeat_interval=timedelta(milliseconds=100))
    async with app, app.worker(WorkerOptions(recovery=recovery)):
        for round_number in (1, 2):
            await on_loop.aenqueue()
            await recorder.wait_for(JobSucceeded, count=2 * round_number)
            old_count = vault.call_count
            vault.change_password()
            # The listener, the claims and the heartbeat connect again.
            await wait_until(partial(vault.was_called, old_count + 3))
            await wait_until(lambda: len(vault.list_sessions()) >= 3)

    assert threading.main_thread() not in vault.threads


async def test_a_worker_ends_at_its_start_if_the_function_fails(database):
    def issue() -> str:
        raise LookupError("no token")

    for source, kind, message in (
        (issue, psycopg.OperationalError, "raised LookupError: no token"),
        (lambda: None, ConfigurationError, "returned NoneType, expected a string"),
    ):
        app = App(source, schema=database.schema)  # type: ignore[arg-type]
        app.task(name="work")(lambda: None)
        with pytest.raises(kind, match=message):
            await app.worker().run_once()
