"""Mistakes that people make first: each message names the cause and what to do about it.

A row of the table is one mistake: what the user did, how it is provoked, words of the cause, words
of the cure. To add a mistake, add a row.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from graphile_worker import App, TaskRouter, WorkerOptions, sync
from tests.conftest import TestDatabase
from tests.support.cluster import free_port
from tests.support.roles import temporary_role
from tests.support.shell import Shell
from tests.support.sql import Sql

pytestmark = pytest.mark.single_version

ROLE = "mistaken"

SHOP = """
from graphile_worker import App

app = App()


@app.task
def big(text: str, /): ...
"""


@dataclass
class Place:
    """Where mistakes are made: a folder, a database, and what is said there."""

    database: TestDatabase
    folder: Path
    shell: Shell
    environment: pytest.MonkeyPatch
    caplog: pytest.LogCaptureFixture

    def type(self, *words: object, **variables: str) -> str:
        """All that the command says to these words."""
        self.caplog.clear()
        with self.environment.context() as patch, logging_as_before():
            for name, value in variables.items():
                patch.setenv(name, value)
            # A module of an earlier mistake must not be found again.
            before = set(sys.modules)
            said = self.shell(*words)
            for name in set(sys.modules) - before:
                if not name.startswith(("graphile_worker.", "psycopg")):
                    del sys.modules[name]
        return said.out + said.err + self.caplog.text

    def call(self, function: Callable[[], object]) -> str:
        """What a call logs, or the words and notes of the error that it raises."""
        self.caplog.clear()
        try:
            function()
        except Exception as error:
            return "\n".join([str(error), *getattr(error, "__notes__", ())])
        return self.caplog.text

    def write(self, name: str, text: str = "", mode: int = 0o644) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return str(path)

    def in_folder(self, name: str) -> "Place":
        """The same, with an empty folder to work in."""
        folder = self.folder / name
        folder.mkdir()
        self.environment.chdir(folder)
        return replace(self, folder=folder)

    def as_role(self) -> str:
        return make_conninfo(self.database.dsn, user=ROLE)

    @property
    def client(self) -> sync.Client:
        return sync.Client(self.database.dsn, schema=self.database.schema)


@dataclass(frozen=True)
class Mistake:
    did: str
    provoke: Callable[[Place], str] = field(repr=False)
    cause: str
    cure: str


@contextmanager
def logging_as_before() -> Iterator[None]:
    """The command sends the log of its whole process to standard error."""
    root, others = logging.getLogger(), logging.getLogger("asyncio")
    handlers, level, of_others = root.handlers[:], root.level, others.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    others.setLevel(of_others)


@pytest.fixture
def place(database, tmp_path, monkeypatch, capsys, caplog) -> Place:
    caplog.set_level(logging.INFO, "graphile_worker")
    # The environment that the tests run in must not add mistakes.
    for name in [each for each in os.environ if each.startswith(("PG", "GRAPHILE_"))]:
        monkeypatch.delenv(name)
    shell = Shell(database, tmp_path, monkeypatch, capsys)
    return Place(database, tmp_path, shell, monkeypatch, caplog)


@pytest.fixture
def role(sql: Sql) -> Iterator[str]:
    """A role that may connect, and no more."""
    with temporary_role(sql, ROLE) as name:
        yield name


# How they are provoked


def adding(payload: Any = None, /, **options: Any) -> Callable[[Place], str]:
    """A client adds a job."""

    def provoke(place: Place) -> str:
        with place.client as client:
            return place.call(lambda: client.add_job("task", payload, **options))

    return provoke


def typing(*words: str, **variables: str) -> Callable[[Place], str]:
    return lambda place: place.type(*words, **variables)


def crontab(text: str) -> Callable[[Place], str]:
    return lambda place: place.type("cron", "check", place.write("crontab", text))


def app_file(
    text: str, name: str = "shop:app", flags: tuple[str, ...] = ()
) -> Callable[[Place], str]:
    def provoke(place: Place) -> str:
        place.write("shop.py", text)
        return place.type("--once", "--app", name, *flags)

    return provoke


def config(text: str, mode: int = 0o644) -> Callable[[Place], str]:
    return lambda place: place.type("config", "-C", place.write("settings.toml", text, mode))


def task_file(name: str, text: str, mode: int) -> Callable[[Place], str]:
    def provoke(place: Place) -> str:
        place.write("queue/fine.py", "def task(payload, ctx): pass\n")
        place.write(f"queue/{name}", text, mode)
        return place.type("--once", "--tasks", "queue")

    return provoke


def connecting(**settings: str | int) -> Callable[[Place], str]:
    """The command with another database, host, port or user."""

    def provoke(place: Place) -> str:
        return place.type("jobs", "list", "-c", make_conninfo(place.database.dsn, **settings))

    return provoke


def defining(define: Callable[[Any], object]) -> Callable[[Place], str]:
    return lambda place: place.call(lambda: define(App()))


def options(**given: Any) -> Callable[[Place], str]:
    return lambda place: place.call(lambda: WorkerOptions(**given))


def add_nothing() -> None: ...


def greet(name: str) -> None: ...


def bare_context(ctx) -> None: ...


class Shop:
    def close(self) -> None: ...


def define_twice(app: App[None]) -> None:
    app.task(name="send")(lambda: None)
    app.task(name="send")(lambda: None)


def async_session(place: Place) -> str:
    app = App(place.database.dsn, schema=place.database.schema)
    send = app.task(name="send")(lambda: None)
    engine = create_async_engine(place.database.sqlalchemy_url("asyncpg"))
    return place.call(send.using(conn=AsyncSession(engine)).enqueue)


def duplicate_prepared_statement(place: Place) -> str:
    with (
        psycopg.connect(place.database.dsn, prepare_threshold=0) as conn,
        place.client as client,
    ):
        # As left behind in a session that a pooler gives to another client.
        conn.execute("prepare _pg3_0 as select 1", prepare=False)
        return place.call(lambda: client.add_job("task", conn=conn))


def without_permissions(place: Place) -> str:
    return place.type("jobs", "list", "-c", place.as_role())


def against_row_level_security(place: Place) -> str:
    with psycopg.connect(place.database.dsn, autocommit=True) as conn:
        quoted = psycopg.sql.Identifier(place.database.schema)
        for what in ("schema {}", "all tables in schema {}", "all functions in schema {}",
                     "all sequences in schema {}"):  # fmt: skip
            grant = psycopg.sql.SQL(f"grant all on {what} to {ROLE}")
            conn.execute(grant.format(quoted))
    return place.type("add", "task", "-c", place.as_role())


def payload_too_large(place: Place) -> str:
    place.write("shop.py", SHOP)
    with place.client as client:
        client.add_job("big", "x" * 2000)
    return place.type("--once", "--app", "shop:app", "--max-payload-bytes", "1000")


def remote_without_tls(place: Place) -> str:
    place.write("shop.py", SHOP)
    with place.environment.context() as patch:
        # As if the server were on another machine.
        patch.setattr("graphile_worker._db.conninfo._is_local", lambda host, address: False)
        return place.type("--once", "--app", "shop:app")


MISTAKES = [
    # The database
    Mistake("no database configured", typing("jobs", "list", DATABASE_URL=""),
        "no database configured", "DATABASE_URL"),
    Mistake("a database that does not exist", connecting(dbname="nope"),
        '"nope" does not exist', "`graphile-worker config` shows it"),
    Mistake("the wrong port", connecting(port=free_port()),
        "refused", "check host, port"),
    Mistake("a connection string that cannot be read", typing("jobs", "list", "-c", "mysql://a/b"),
        "is invalid", "postgres://user@host/database"),
    Mistake("an @ in the password", typing("jobs", "list", "-c", "postgres://a:b@c@d/e"),
        "contains an @", "%40"),
    Mistake("a schema that is not installed", typing("jobs", "list", "-s", "nope"),
        "'nope' is not installed", "graphile-worker migrate --schema nope"),
    Mistake("a schema of the system", typing("migrate", "-s", "information_schema"),
        "information_schema", "another"),
    Mistake("a schema name that PostgreSQL would cut", typing("jobs", "list", "-s", "x" * 64),
        "has 64", "63 bytes"),
    Mistake("a role without permissions", without_permissions,
        "permission denied", "graphile-worker doctor"),
    Mistake("a role that row-level security stops", against_row_level_security,
        "row-level security", "docs/operations/permissions-and-security.md"),
    Mistake("prepared statements behind a pooler", duplicate_prepared_statement,
        "already exists", "--no-prepared-statements"),
    Mistake("a remote database that TLS is not required for", remote_without_tls,
        "sslmode=prefer", "sslmode=verify-full"),
    # The command
    Mistake("a variable with a slip", typing("config", GRAPHILE_WORKER_CONCURRENT="5"),
        "GRAPHILE_WORKER_CONCURRENT", "did you mean 'GRAPHILE_WORKER_CONCURRENCY'?"),
    Mistake("the variable of the connection under another name",
        typing("config", GRAPHILE_WORKER_DATABASE_URL="postgres://x/y"),
        "unknown setting", "did you mean 'DATABASE_URL'?"),
    Mistake("a flag with a slip", typing("--max-pool-sizing", "5"),
        "--max-pool-sizing", "--max-pool-size"),
    Mistake("concurrency below one", app_file(SHOP, flags=("-j", "-1")),
        "got -1", "from 1"),
    Mistake("a log format that there is not", typing("--log-format", "xml"),
        '"xml"', "text or json"),
    Mistake("a duration without a sense", typing("--poll-interval", "soon"),
        '"soon"', "500ms"),
    Mistake("a job that is not there", typing("jobs", "retry", "99999"),
        "job 99999 does not exist", "It was completed or removed"),
    Mistake("a worker that is not there", typing("workers", "recover", "nope", "--yes"),
        "unknown worker nope", "graphile-worker workers list"),
    Mistake("a change without saying to which jobs", typing("jobs", "retry"),
        "no jobs chosen", "--where or --all"),
    Mistake("a payload that is not JSON", typing("add", "task", "{to: ada}"),
        "not JSON", "double quotes"),
    Mistake("a time without a zone", typing("add", "task", "--run-at", "2026-08-01T10:00"),
        "has no time zone", "Add Z"),
    Mistake("a filter that cannot be read", typing("jobs", "list", "state:done"),
        "column 7", "failed"),
    Mistake("a cron item that there is not", typing("cron", "run", "nope", "--crontab", os.devnull),
        "no cron item", "Write ./crontab"),
    Mistake("flags that exclude each other", typing("--once", "--schema-only"),
        "--once and --schema-only", "exclude each other"),
    # The config file
    Mistake("a setting that there is not", config("concurrent = 5\n"),
        "unknown setting 'concurrent'", "'concurrency'?"),
    Mistake("a bare number as a duration", config("poll_interval = 2000\n"),
        "2000", '"2000ms"'),
    Mistake("a config file that any user may change", config("concurrency = 5\n", 0o666),
        "not trusted", "chmod"),
    # Where tasks are
    Mistake("no tasks", typing("--once"),
        "no tasks", "--app package.module:app"),
    Mistake("an app in a file name", app_file("", "shop.py"),
        "no module", "package.module:app"),
    Mistake("an app in a module that there is not", app_file("", "shp:app"),
        "no module 'shp'", "from the current directory"),
    Mistake("an app under another name",
        app_file("from graphile_worker import App\nqueue = App()\n"),
        "no app 'app'", "Write shop:queue."),
    Mistake("an app that is not an App", app_file("app = 5\n"),
        "no app 'app' in shop", "app = App()"),
    Mistake("a module that raises when it is imported", app_file("import yaml_that_is_not_there\n"),
        "yaml_that_is_not_there", 'shop.py", line 1'),
    Mistake("a tasks folder that is not there", typing("--once", "--tasks", "nope"),
        "no tasks folder at nope", "--tasks"),
    Mistake("a task file that raises when it is imported", task_file("bad.py", "1 / 0\n", 0o644),
        "division by zero", 'bad.py", line 1'),
    Mistake("a task file that any user may change", task_file("open.py", "", 0o666),
        "not trusted", "chmod"),
    Mistake("a program without permission to run", task_file("convert.sh", "#!/bin/sh\n", 0o644),
        "neither Python nor executable", "chmod +x"),
    # Tasks
    Mistake("two tasks of one name", defining(define_twice),
        "two tasks are named 'send'", "name="),
    Mistake("a local function in a process",
        defining(lambda app: app.task(run_in="process")(lambda: None)),
        "runs in a process", "at the top of a module"),
    Mistake("a place that there is not",
        defining(lambda app: app.task(run_in="fiber")(add_nothing)),
        "'fiber'", "thread"),
    Mistake("a router that no app includes",
        defining(lambda app: TaskRouter().task(add_nothing).enqueue()),
        "not included in an app", "app.include(router)"),
    Mistake("a session of asyncio without await", async_session,
        "AsyncSession is an async connection", "aenqueue()"),
    Mistake("a timeout in seconds", defining(lambda app: app.task(timeout=30)(print)),
        "got 30", "timedelta"),
    Mistake("a method as a task", defining(lambda app: app.task(Shop.close)),
        "a method cannot be a task", "outside the class"),
    Mistake("a context without annotation", defining(lambda app: app.task(bare_context)),
        "'ctx' has no annotation", "ctx: SyncJobContext"),
    Mistake("an argument of another type", defining(lambda app: app.task(greet).spec(7)),
        'greet: "name"', "must be str, got int"),
    Mistake("a mode without a key",
        defining(lambda app: app.task(greet).using(job_key_mode="replace").spec("Ada")),
        "job_key_mode='replace' has no effect", "without a job_key"),
    # Jobs
    Mistake("bytes as payload", adding({"body": b"x"}),
        "bytes has no JSON form", "for example to str"),
    Mistake("NUL in a payload", adding({"body": "\x00"}),
        "NUL", "remove it"),
    Mistake("a naive datetime", adding(run_at=datetime(2026, 1, 1)),
        "naive datetime", "tzinfo"),
    Mistake("milliseconds as run_at", adding(run_at=5000),
        "5000", "timedelta"),
    Mistake("a key that is too long", adding(job_key="k" * 600),
        "job_key", "at most 512"),
    Mistake("a priority that is not a smallint", adding(priority=100_000),
        "priority=100000", "from -32768 to 32767"),
    Mistake("no attempts", adding(max_attempts=0),
        "max_attempts=0", "at least 1"),
    Mistake("a mode that there is not", adding(job_key="k", job_key_mode="overwrite"),
        "'overwrite'", "replace"),
    Mistake("a worker with one connection", options(max_pool_size=1),
        "got 1", "from 2"),
    Mistake("options in milliseconds", options(poll_interval=2000),
        "2000", "timedelta"),
    Mistake("a payload that a worker does not read", payload_too_large,
        "max_payload_bytes is 1,000", "raise max_payload_bytes"),
    # The crontab
    Mistake("a crontab without a task", crontab("* * * * *\n"),
        "line 1", "task"),
    Mistake("a weekday that there is not", crontab("\n0 4 * * 8 task\n"),
        "line 2, column 9", "0 to 7"),
    Mistake("a step beyond the field", crontab("*/70 * * * * task\n"),
        "*/70", "59"),
    Mistake("a crontab option that there is not", crontab("0 4 * * * task ?prio=1\n"),
        "prio", "priority"),
    Mistake("a crontab payload that is not JSON5", crontab("0 4 * * * task {a: }\n"),
        "line 1", "JSON5"),
    Mistake("a crontab payload that is too large",
        crontab("0 4 * * * task {a: '" + "x" * 70_000 + "'}\n"),
        "line 1", "at most"),
]  # fmt: skip


def test_each_mistake_raises_an_error_with_its_cause_and_its_fix(place, role):
    silent = {}
    for number, mistake in enumerate(MISTAKES):
        said = mistake.provoke(place.in_folder(str(number)))
        if mistake.cause not in said or mistake.cure not in said:
            silent[mistake.did] = (mistake.cause, mistake.cure, said)

    assert silent == {}


def test_the_table_has_at_least_40_mistakes():
    assert len({mistake.did for mistake in MISTAKES}) == len(MISTAKES) >= 40
