"""The installed command without a subcommand: its flags, tasks, log, health and exit codes."""

import json
import os
import pty
import re
import signal
import socket
import sys
import time
from functools import partial

import pytest

from graphile_worker import sync
from tests.conftest import TestDatabase
from tests.support.cluster import free_port, server_of
from tests.support.health import status
from tests.support.processes import INSTALLED, READY, Program, Programs, eventually
from tests.support.rows import count_worker_sessions as connections
from tests.support.sql import Sql

HELLO = """
    async def task(payload, ctx):
        ctx.logger.info(f"Hello, {payload['name']}")
"""

SHOP = """
    from graphile_worker import App

    app = App()

    @app.task
    async def ship(order: int):
        print("shipped", order, flush=True)
"""


@pytest.fixture
def greeting(programs: Programs) -> Programs:
    """Programs in a folder with one task, `hello`."""
    programs.write("tasks/hello.py", HELLO)
    return programs


# Start, help and version


@pytest.mark.every_version
@pytest.mark.feature("F3")
def test_the_command_runs_the_tasks_of_the_folder_until_a_signal(greeting, sql):
    worker = greeting.without_fork.worker()

    add(sql, "hello", name="Ada")
    worker.wait_for_line("Hello, Ada")
    add(sql, "hello", name="Grace")
    worker.wait_for_line("Hello, Grace")

    assert worker.stop(signal.SIGTERM) == 0
    assert jobs(sql) == []


@pytest.mark.feature("F3")
def test_the_module_is_the_same_command(greeting, sql):
    add(sql, "hello", name="Ada")

    done = greeting.start([sys.executable, "-m", "graphile_worker", "--once"], {})

    assert done.end() == 0
    assert "Hello, Ada" in done.err


@pytest.mark.feature("F16")
def test_a_worker_installs_the_schema(tmp_path, empty_database):
    with Programs.for_database(empty_database, tmp_path) as programs:
        programs.write("tasks/hello.py", HELLO)
        done = programs.run_to_end("--once")
    behind = Sql(empty_database.dsn, empty_database.schema)
    level = behind.value("select max(id) from :schema.migrations")
    behind.close()

    assert done.code == 0
    assert level == 20


@pytest.mark.every_version
@pytest.mark.feature("F190")
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_names_every_flag(programs, flag):
    done = programs.run_to_end(flag)

    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("Usage: graphile-worker")
    for name in (
        "-c, --connection",
        "-s, --schema",
        "--schema-only",
        "--once",
        "--crontab",
        "-j, --jobs",
        "-p, --processes",
        "--max-jobs",
        "--max-memory",
        "-m, --max-pool-size",
        "--poll-interval",
        "--no-prepared-statements",
        "--no-listen",
        "--lease-duration",
        "--no-recovery",
        "--cleanup",
        "--app",
        "--loop",
        "--log-format",
        "--health-port",
        "--health-host",
        "-C, --config",
        "--tasks",
        "-w, --watch",
        "--version",
    ):
        assert name in done.out


@pytest.mark.feature("F191")
def test_the_version_is_printed(programs):
    done = programs.run_to_end("--version")

    assert (done.code, done.err) == (0, "")
    assert re.fullmatch(r"graphile-worker, version \d+\.\d+\.\d+\S*\n", done.out)


@pytest.mark.parametrize("flags", [["--nonsense"], ["-x"], ["-j", "many"], ["--log-format", "xml"]])
def test_unknown_flags_and_commands_exit_with_2(greeting, flags):
    done = greeting.run_to_end(*flags)

    assert (done.code, done.out) == (2, "")
    assert "Usage: graphile-worker" in done.err
    assert flags[0] in done.err
    assert "Traceback" not in done.err


# Database and schema


@pytest.mark.feature("F192")
def test_a_connection_string_selects_the_database(greeting, database, sql):
    add(sql, "hello", name="Ada")

    done = greeting.run_to_end("--once", "-c", database.url, DATABASE_URL=None)

    assert done.code == 0
    assert jobs(sql) == []


@pytest.mark.feature("F192")
def test_database_url_selects_the_database_unless_a_flag_does(greeting, database, sql):
    add(sql, "hello", name="Ada")
    nowhere = "postgres://nobody@127.0.0.1:1/nowhere"

    failed = greeting.run_to_end("--once", DATABASE_URL=nowhere)
    done = greeting.run_to_end("--once", "--connection", database.url, DATABASE_URL=nowhere)

    assert_one_line(failed)
    assert done.code == 0
    assert jobs(sql) == []


@pytest.mark.feature("F192")
def test_the_variables_of_libpq_select_the_database(greeting, database, sql):
    add(sql, "hello", name="Ada")
    server = server_of(database.cluster)

    done = greeting.run_to_end("--once", DATABASE_URL=None, PGDATABASE=database.name, **server)

    assert done.code == 0
    assert jobs(sql) == []


@pytest.mark.feature("F193")
def test_a_bare_word_is_the_name_of_a_database(greeting, database, sql):
    add(sql, "hello", name="Ada")
    server = server_of(database.cluster)

    done = greeting.run_to_end("--once", "-c", database.name, DATABASE_URL=None, **server)

    assert done.code == 0
    assert jobs(sql) == []


@pytest.mark.feature("F193")
def test_ssl_true_requires_tls(greeting, database):
    # The server of the tests does not support TLS, so the connection fails.
    done = greeting.run_to_end("--once", "-c", f"{database.url}?ssl=true")

    assert_one_line(done)
    assert "does not support SSL" in done.err


def test_without_a_database_the_error_names_the_setting(greeting):
    done = greeting.run_to_end(DATABASE_URL=None)

    assert_one_line(done)
    assert "DATABASE_URL" in done.err
    assert "PGDATABASE" in done.err


@pytest.mark.parametrize("host", ["127.0.0.1:1", "host.invalid"])
def test_an_unreachable_database_is_reported_in_one_line(greeting, host):
    done = greeting.run_to_end("-c", f"postgres://me@{host}/db?connect_timeout=5")

    assert_one_line(done)


@pytest.mark.feature("F194")
def test_a_flag_or_a_variable_sets_the_schema(greeting, database):
    for flags, variable in ((["-s", "one"], "two"), ([], "two"), ([], None)):
        done = greeting.run_to_end("--schema-only", *flags, GRAPHILE_WORKER_SCHEMA=variable)
        assert done.code == 0

    assert list_schemas(database) >= {"one", "two", "graphile_worker"}


@pytest.mark.feature("F194")
def test_a_worker_runs_the_jobs_of_the_given_schema(greeting, database):
    with sync.Client(database.dsn, schema="other") as client:
        client.migrate()
        client.add_job("hello", {"name": "Ada"})

    done = greeting.run_to_end("--once", "--schema", "other")

    assert done.code == 0
    assert "Hello, Ada" in done.err


# One-shot flags


@pytest.mark.every_version
@pytest.mark.feature("F195")
def test_schema_only_installs_and_needs_no_tasks(tmp_path, empty_database):
    with Programs.for_database(empty_database, tmp_path) as programs:
        first = programs.run_to_end("--schema-only")
        again = programs.run_to_end("--schema-only")

    for done in (first, again):
        assert (done.code, done.err) == (0, "")
        assert done.out == f"schema {empty_database.schema} is up to date, at level 20\n"


@pytest.mark.every_version
@pytest.mark.feature("F196")
def test_once_runs_due_jobs_and_exits(greeting, sql):
    for name in ("Ada", "Grace"):
        add(sql, "hello", name=name)
    sql.run("select from :schema.add_job('hello', '{}', run_at := now() + interval '1 hour')")

    done = greeting.run_to_end("--once")

    assert done.code == 0
    assert "Hello, Ada" in done.err
    assert "Hello, Grace" in done.err
    assert jobs(sql) == [("hello", 0, None)]


@pytest.mark.feature("F196")
def test_once_drains_named_queues(greeting, sql):
    for name in ("Ada", "Grace", "Barbara"):
        payload = json.dumps({"name": name})
        sql.run("select from :schema.add_job('hello', $1::json, queue_name := 'one')", payload)

    done = greeting.run_to_end("--once", "-j", "4")

    assert done.code == 0
    assert jobs(sql) == []


@pytest.mark.feature("F196")
def test_once_and_schema_only_exclude_each_other(greeting):
    done = greeting.run_to_end("--once", "--schema-only")

    assert_one_line(done)
    assert "--once and --schema-only exclude each other. Remove one." in done.err


def test_cleanup_keeps_the_identifiers_of_known_tasks(greeting, sql):
    for name in ("hello", "forgotten"):
        sql.run("insert into :schema._private_tasks (identifier) values ($1)", name)
    sql.run("insert into :schema._private_job_queues (queue_name) values ('unused')")

    done = greeting.run_to_end("--cleanup", "GC_TASK_IDENTIFIERS", "--cleanup", "GC_JOB_QUEUES")

    assert (done.code, done.err) == (0, "")
    assert done.out == "cleaned up: GC_TASK_IDENTIFIERS, GC_JOB_QUEUES\n"
    assert sql.run("select identifier from :schema._private_tasks") == [("hello",)]
    assert sql.run("select queue_name from :schema._private_job_queues") == []


@pytest.mark.every_version
def test_cleanup_takes_a_list_and_needs_no_tasks(programs, sql):
    add(sql, "gone")
    sql.run("update :schema._private_jobs set attempts = max_attempts")

    done = programs.run_to_end("--cleanup", "DELETE_PERMAFAILED_JOBS,GC_TASK_IDENTIFIERS")

    assert (done.code, done.err) == (0, "")
    assert jobs(sql) == []
    assert sql.run("select identifier from :schema._private_tasks") == []


def test_an_unknown_cleanup_step_is_rejected_with_the_known_ones(programs):
    done = programs.run_to_end("--cleanup", "GC_NONSENSE")

    assert_one_line(done)
    assert "GC_NONSENSE" in done.err
    assert "GC_TASK_IDENTIFIERS" in done.err


def test_cleanup_uses_the_database_and_the_schema_of_the_app(programs, database):
    with sync.Client(database.dsn, schema="of_the_app") as client:
        client.migrate()
    behind = Sql(database.dsn, "of_the_app")
    behind.run("insert into :schema._private_tasks (identifier) values ('forgotten')")
    programs.write("shop.py", SHOP.replace("App()", f"App({database.url!r}, schema='of_the_app')"))
    unset = {"DATABASE_URL": None, "GRAPHILE_WORKER_SCHEMA": None}

    done = programs.run_to_end("--app", "shop", "--cleanup", "GC_TASK_IDENTIFIERS", **unset)
    left = behind.run("select identifier from :schema._private_tasks")
    behind.close()

    assert done.code == 0, done.err
    assert left == []


def test_schema_only_uses_the_database_and_the_schema_of_the_app(programs, database):
    programs.write("shop.py", SHOP.replace("App()", f"App({database.url!r}, schema='of_the_app')"))
    unset = {"DATABASE_URL": None, "GRAPHILE_WORKER_SCHEMA": None}

    done = programs.run_to_end("--app", "shop", "--schema-only", **unset)

    assert done.code == 0, done.err
    assert "of_the_app" in list_schemas(database)


# Concurrency, connections and polling


MEETING = """
    import asyncio

    waiting = 0
    met = asyncio.Event()

    async def task(payload, ctx):
        global waiting
        waiting += 1
        if waiting == payload["of"]:
            met.set()
        await asyncio.wait_for(met.wait(), payload.get("within", 30))
"""


@pytest.mark.feature("F199")
def test_the_jobs_flag_sets_the_number_of_jobs_at_once(programs, sql):
    programs.write("tasks/meet.py", MEETING)
    for _ in range(3):
        add(sql, "meet", of=3)

    done = programs.run_to_end("--once", "-j", "3")

    assert done.code == 0
    assert jobs(sql) == []


@pytest.mark.feature("F199")
def test_one_job_runs_at_a_time_by_default(programs, sql):
    programs.write("tasks/meet.py", MEETING)
    for _ in range(2):
        add(sql, "meet", of=2, within=0.2)
    # With five attempts, the backoff is longer than the run of the worker.
    sql.run("update :schema._private_jobs set attempts = 5")

    programs.run_to_end("--once")

    # The first job timed out, and the second one started after that.
    assert [attempts for _, attempts, _ in jobs(sql)] == [6]


@pytest.mark.parametrize("jobs_flag", ["0", "-1"])
def test_a_concurrency_below_1_is_rejected(greeting, jobs_flag):
    done = greeting.run_to_end("--jobs", jobs_flag)

    assert done.code == 2
    assert f"'--jobs': expected a whole number from 1, got {jobs_flag}." in done.err


@pytest.mark.feature("F200")
@pytest.mark.parametrize("tasks", [["hold"], ["hold", "hold_in_thread"]], ids=["async", "both"])
def test_the_worker_opens_at_most_max_pool_size_connections(programs, sql, tasks):
    programs.write("tasks/hold.py", HOLD)
    programs.write("tasks/hold_in_thread.py", HOLD_IN_THREAD)
    for number in range(30):
        add(sql, tasks[number % len(tasks)])
    worker = programs.worker("-j", "20", "-m", "4")
    counts = []

    def all_done() -> bool:
        counts.append(connections(sql))
        return not jobs(sql)

    eventually(all_done, "all jobs are done")
    assert worker.stop() == 0
    # One more connection is for heartbeats, and one for slow statements.
    assert 2 <= max(counts) <= 4 + 2
    assert "max_pool_size=4 is less than concurrency=20" in worker.err


HOLD = """
    async def task(payload, ctx):
        async with ctx.connection() as connection:
            await connection.execute("select pg_sleep(0.2)")
"""

HOLD_IN_THREAD = """
    def task(payload, ctx):
        with ctx.connection() as connection:
            connection.execute("select pg_sleep(0.2)")
"""


@pytest.mark.feature("F200")
def test_a_worker_needs_two_connections(greeting):
    done = greeting.run_to_end("--max-pool-size", "1")

    assert done.code == 2
    assert "'--max-pool-size': expected a whole number from 2, got 1." in done.err


@pytest.mark.feature("F201")
def test_the_poll_interval_is_in_milliseconds(greeting, sql):
    worker = greeting.worker("--poll-interval", "50", "--no-listen")

    started = time.monotonic()
    for number in range(40):
        add(sql, "hello", name=f"number {number}")
        worker.wait_for_line(f"Hello, number {number}")

    # The worker does not listen: with the default interval each job would wait for up to 2 s.
    assert time.monotonic() - started < 40
    assert worker.stop() == 0


@pytest.mark.parametrize("interval", ["0", "-5"])
def test_a_poll_interval_of_zero_is_rejected(greeting, interval):
    done = greeting.run_to_end("--poll-interval", interval)

    assert_one_line(done)
    assert "poll_interval" in done.err


@pytest.mark.feature("F202")
@pytest.mark.parametrize("flags", [[], ["--no-prepared-statements"]])
def test_statements_are_prepared_unless_turned_off(programs, sql, flags):
    programs.write("tasks/count.py", PREPARED)
    for _ in range(20):
        add(sql, "count")

    done = programs.run_to_end("--once", *flags)

    counts = [int(line) for line in done.out.splitlines()]
    assert len(counts) == 20
    assert (max(counts) > 0) is (not flags)


PREPARED = """
    async def task(payload, ctx):
        rows = await ctx.query("select count(*)::int as prepared from pg_prepared_statements")
        print(rows[0]["prepared"], flush=True)
"""


@pytest.mark.parametrize(("flags", "listens"), [([], True), (["--no-listen"], False)])
def test_a_worker_listens_unless_turned_off(greeting, sql, flags, listens):
    worker = greeting.worker("--poll-interval", "100", *flags)

    add(sql, "hello", name="Ada")
    worker.wait_for_line("Hello, Ada")
    listening = sql.value(
        "select count(*) from pg_stat_activity"
        " where datname = current_database() and query ilike 'listen %'"
    )

    assert worker.stop() == 0
    assert (listening == 1) is listens


# Sources of tasks


@pytest.mark.every_version
def test_the_app_flag_takes_a_module(programs, sql):
    programs.write("shop.py", SHOP)
    add(sql, "ship", order=7)

    done = programs.run_to_end("--once", "--app", "shop:app")

    assert done.code == 0
    assert done.out == "shipped 7\n"


def test_the_app_flag_takes_a_module_and_an_attribute(programs, sql):
    programs.write("firm/__init__.py", "")
    programs.write("firm/shop.py", SHOP.replace("app", "queue"))
    add(sql, "ship", order=7)

    done = programs.run_to_end("--once", "--app", "firm.shop:queue")

    assert done.code == 0
    assert done.out == "shipped 7\n"


def test_a_variable_names_the_app(programs, sql):
    programs.write("shop.py", SHOP)
    add(sql, "ship", order=7)

    done = programs.run_to_end("--once", GRAPHILE_WORKER_APP="shop")

    assert done.code == 0
    assert done.out == "shipped 7\n"


def test_an_app_takes_precedence_over_the_folder(greeting, sql):
    greeting.write("shop.py", SHOP)
    add(sql, "hello", name="Ada")
    add(sql, "ship", order=7)

    done = greeting.run_to_end("--once", "--app", "shop")

    assert done.code == 0
    assert done.out == "shipped 7\n"
    assert [name for name, _, _ in jobs(sql)] == ["hello"]


def test_a_flag_overrides_the_database_of_the_app(programs, database, sql):
    programs.write("shop.py", SHOP.replace("App()", f"App({database.url!r})"))
    add(sql, "ship", order=7)
    nowhere = "postgres://nobody@127.0.0.1:1/nowhere"

    done = programs.run_to_end("--once", "--app", "shop", DATABASE_URL=nowhere)
    failed = programs.run_to_end("--once", "--app", "shop", "-c", nowhere)

    assert done.out == "shipped 7\n"
    assert_one_line(failed)


def test_a_flag_overrides_the_schema_of_the_app(programs, database):
    with sync.Client(database.dsn, schema="of_the_flag") as client:
        client.migrate()
        client.add_job("ship", {"order": 7})
    programs.write("shop.py", SHOP.replace("App()", "App(schema='of_the_app')"))

    done = programs.run_to_end("--once", "--app", "shop", "-s", "of_the_flag")

    assert done.code == 0, done.err
    assert done.out == "shipped 7\n"


def test_without_tasks_and_app_the_error_names_both(programs):
    done = programs.run_to_end()

    assert_one_line(done)
    assert "./tasks" in done.err
    assert "--app" in done.err
    assert "GRAPHILE_WORKER_APP" in done.err


@pytest.mark.parametrize(
    ("app", "message"),
    [
        ("nowhere:app", "no module 'nowhere'"),
        ("firm.nowhere:app", "no module 'firm.nowhere'"),
        ("firm:shop", "no app 'shop' in firm. Write firm:queue."),
        ("plain", "Define one there"),
    ],
)
def test_a_missing_app_is_reported_in_one_line(programs, app, message):
    programs.write("firm/__init__.py", SHOP.replace("app", "queue"))
    programs.write("plain.py", "x = 1\n")

    done = programs.run_to_end("--app", app)

    assert_one_line(done)
    assert message in done.err


def test_an_import_error_shows_the_traceback_of_the_users_module(programs):
    programs.write("firm/__init__.py", "")
    programs.write("firm/broken.py", "def half(x):\n    return x / 0\n\nhalf(1)\n")
    programs.write("shop.py", "from firm import broken\n")
    programs.write("needy.py", "import a_module_that_is_not_installed\n")
    programs.write("typo.py", "def task(:\n")
    programs.write("leaving.py", "raise SystemExit(3)\n")
    programs.write("tasks/ship.py", "from firm import broken\n")
    frames = ['broken.py", line 4, in <module>', "half(1)", 'broken.py", line 2, in half']
    cases = {
        ("--app", "shop:app"): ['shop.py", line 1', *frames, "shop could not be imported"],
        ("--tasks", "tasks"): ['ship.py", line 1', *frames, "ship.py could not be imported"],
        ("--app", "needy"): ['needy.py", line 1', "needy could not be imported: ModuleNotFound"],
        ("--app", "typo"): ['typo.py", line 1', "def task(:", "typo could not be imported"],
        ("--app", "leaving"): ['leaving.py", line 1', "leaving exited the program"],
        ("--app", "shop:app", "--processes", "1"): ['shop.py", line 1', *frames],
    }

    for flags, expected in cases.items():
        done = programs.run_to_end("--once", *flags)

        assert done.code == 1
        positions = [done.err.find(each) for each in expected]
        assert -1 not in positions, (expected, done.err)
        assert positions == sorted(positions), (expected, done.err)
        assert "importlib" not in done.err
        assert "graphile_worker/" not in done.err


def test_an_import_error_in_the_process_of_a_task_shows_the_traceback_of_its_module(programs, sql):
    programs.write(
        "shop.py",
        """
        from pathlib import Path

        from graphile_worker import App

        app = App()


        def only_once():
            Path("loaded").touch(exist_ok=False)


        only_once()


        @app.task(run_in="process")
        def ship(order: int): ...
        """,
    )
    add(sql, "ship", order=7)

    done = programs.run_to_end("--once", "--app", "shop")

    error = sql.value("select last_error from :schema._private_jobs")
    assert done.code == 0, done.err
    assert error.startswith("TaskLoadError: shop could not be imported: FileExistsError")
    assert "in only_once" in error
    assert "importlib" not in error
    assert "graphile_worker/" not in error


def test_an_app_without_tasks_is_reported_in_one_line(programs):
    programs.write("shop.py", "from graphile_worker import App\n\napp = App()\n")

    done = programs.run_to_end("--app", "shop")

    assert_one_line(done)
    assert "no tasks" in done.err


@pytest.mark.feature("F111")
def test_the_path_of_a_file_is_its_task_identifier(programs, sql):
    programs.write("wording.py", "GREETING = 'Good morning'\n")
    programs.write(
        "tasks/mail/new-users/greet_1.py",
        """
        from wording import GREETING

        def task(payload, ctx):
            print(GREETING, payload["name"], ctx.job.task_identifier, flush=True)
        """,
    )
    add(sql, "mail/new-users/greet_1", name="Ada")

    done = programs.run_to_end("--once")

    assert done.code == 0
    assert done.out == "Good morning Ada mail/new-users/greet_1\n"


@pytest.mark.feature("F113")
@pytest.mark.parametrize(
    "text",
    [
        "async def task(payload, ctx):\n    print(payload, ctx.job.id > 0, flush=True)\n",
        "def task(payload, ctx):\n    print(payload, ctx.job.id > 0, flush=True)\n",
        "def task(payload):\n    print(payload, True, flush=True)\n",
        "async def one(payload, ctx):\n    print(payload, ctx.job.id > 0, flush=True)\n",
        "from graphile_worker import SyncJobContext, TaskRouter\n\ntasks = TaskRouter()\n\n"
        "@tasks.task\ndef any_name(ctx: SyncJobContext, a: int):\n"
        "    print({'a': a}, ctx.job.id > 0, flush=True)\n",
    ],
    ids=["async", "plain", "payload only", "named like the file", "task object"],
)
def test_a_file_contains_one_task(programs, sql, text):
    programs.write("tasks/one.py", text)
    add(sql, "one", a=1)

    done = programs.run_to_end("--once")

    assert (done.code, done.out) == (0, "{'a': 1} True\n"), done.err


def test_a_file_without_a_task_is_a_warning_with_its_name(greeting, sql):
    greeting.write("tasks/helpers/dates.py", "def today(): ...\n")
    add(sql, "hello", name="Ada")

    done = greeting.run_to_end("--once")

    assert done.code == 0
    line = next(line for line in done.err.splitlines() if "dates.py" in line)
    assert line.startswith("[core] WARNING: ")
    assert "Hello, Ada" in done.err


@pytest.mark.feature("F112")
@pytest.mark.parametrize("name", ["notes.txt", "hello.js", "hello.ts", "README", "spaced name.py"])
def test_an_ignored_file_is_logged_at_info(greeting, name):
    greeting.write(f"tasks/{name}", "not Python at all\n")

    done = greeting.run_to_end("--once")

    assert done.code == 0
    assert any(name in line and " INFO: " in line for line in done.err.splitlines()), done.err


@pytest.mark.every_version
def test_a_file_that_cannot_be_imported_is_named_in_the_last_line(greeting):
    greeting.write("tasks/mail/broken.py", "1 / 0\n")

    done = greeting.run_to_end("--once")

    assert done.code == 1
    assert done.err.splitlines()[-1].startswith("graphile-worker: ")
    assert "tasks/mail/broken.py could not be imported: ZeroDivisionError" in done.err


def test_an_empty_folder_is_reported_in_one_line(programs):
    (programs.folder / "tasks").mkdir()

    done = programs.run_to_end()

    assert_one_line(done)
    assert "no tasks" in done.err


# Log lines


@pytest.mark.feature("F132", "F140", "F141", "F142")
def test_log_lines_have_the_form_of_graphile_worker_for_node(greeting, sql):
    job = add(sql, "hello", name="Ada")

    done = greeting.run_to_end("--once")

    pool = r"pypool-[0-9a-f]{18}"
    scope = rf"\[job\({pool}: hello\{{{job}\}}\)\] INFO: "
    lines = done.err.splitlines()
    assert done.out == ""
    connected = rf"\[core\({pool}\)\] INFO: {READY} \(task names: 'hello'\)"
    assert re.fullmatch(connected, lines[0])
    assert re.fullmatch(scope + "Hello, Ada", lines[1])
    assert re.fullmatch(
        scope + rf"completed job {job} \(hello\) with success \(\d+\.\d\d ms\)", lines[2]
    )


@pytest.mark.every_version
@pytest.mark.feature("F132")
def test_json_lines_have_the_ids_as_fields(greeting, sql):
    job = add(sql, "hello", name="Ada")

    done = greeting.run_to_end("--once", "--log-format", "json")

    lines = [json.loads(line) for line in done.err.splitlines()]
    assert lines[0]["message"].startswith(READY)
    completed = lines[2]
    assert completed.keys() >= {"time", "logger", "pool_id", "worker_id"}
    assert completed["pid"] == done.pid
    assert completed["duration_ms"] == round(completed["duration_ms"], 2)
    assert completed["wait_ms"] >= 0
    known = {
        "level": "info",
        "label": "job",
        "task_identifier": "hello",
        "job_id": job,
        "queue_name": None,
        "attempt": 1,
        "max_attempts": 25,
    }
    assert known.items() <= completed.items()


@pytest.mark.feature("F132")
def test_both_log_formats_have_the_pool_id_of_workers_list(greeting, sql):
    for flags in ([], ["--log-format", "json"]):
        worker = greeting.worker(*flags)
        listed = json.loads(greeting.run_to_end("workers", "list", "--json").out)["workers"]
        job = add(sql, "hello", name="Ada")

        lines = [
            worker.wait_for_line(READY),
            worker.wait_for_line("Hello, Ada"),
            worker.wait_for_line(f"completed job {job}"),
        ]
        assert worker.stop() == 0
        lines.append(worker.wait_for_line("stopping"))

        [pool_id] = [each["id"] for each in listed]
        assert all(pool_id in line for line in lines), lines


@pytest.mark.every_version
def test_a_failure_is_logged_with_its_traceback(programs, sql):
    programs.write("tasks/fail.py", "def task(payload):\n    raise ValueError('no such user')\n")
    job = add(sql, "fail")

    done = programs.run_to_end("--once")
    again = programs.run_to_end("--once", "--log-format", "json")

    assert done.code == 0
    assert f"failed job {job} (fail, attempt 1 of 25) with error ValueError: no such" in done.err
    assert "Traceback" in done.err
    assert all(json.loads(line) for line in again.err.splitlines())


# Disables all loggers that exist, as by default, and prints lines of one logger.
LOGGING_APP = """
    import logging.config

    from graphile_worker import App

    app = App()
    CONSOLE = {"handlers": ["console"], "level": "INFO"}
    logging.config.dictConfig(
        {
            "version": 1,
            "formatters": {"shop": {"format": "shop: %(message)s"}},
            "handlers": {
                "console": {"class": "logging.StreamHandler", "formatter": "shop"},
                "file": {"class": "logging.FileHandler", "filename": "log"},
            },
            "loggers": {
                "shop": CONSOLE,
                "graphile_worker": {"handlers": ["file"]},
            },
            **ROOT,
        }
    )

    @app.task
    def hello(name: str) -> None:
        logging.getLogger("shop.orders").info("Hello, %s", name)
"""


@pytest.mark.parametrize("flags", [[], ["--processes", "2"], ["--watch"]])
def test_the_logging_configuration_of_an_app_neither_silences_nor_doubles_lines(
    programs, sql, flags
):
    programs.write("shop.py", LOGGING_APP.replace("ROOT", "{}"))
    worker = programs.worker("--app", "shop", *flags)
    job = add(sql, "hello", name="Ada")

    worker.wait_for_line(f"completed job {job}")
    assert worker.stop() == 0

    assert [line for line in worker.err.splitlines() if "Ada" in line] == ["shop: Hello, Ada"]
    assert worker.err.count(f"completed job {job}") == 1
    assert "--log-format" not in worker.err


def test_a_log_format_beside_handlers_of_the_root_logger_is_one_warning(programs):
    programs.write("shop.py", LOGGING_APP.replace("ROOT", '{"root": CONSOLE}'))

    chosen = programs.run_to_end("--once", "--app", "shop", "--log-format", "json")
    not_chosen = programs.run_to_end("--once", "--app", "shop")

    assert chosen.err.count("--log-format has no effect") == 1
    assert "--log-format" not in not_chosen.err
    for done in (chosen, not_chosen):
        assert all(line.startswith("shop: ") for line in done.err.splitlines()), done.err
        assert READY in done.err


@pytest.mark.feature("F141")
def test_no_log_success_turns_success_lines_off(programs, sql):
    programs.write("tasks/hello.py", "def task(payload): ...\n")
    programs.write("tasks/fail.py", "def task(payload):\n    raise ValueError('no such user')\n")
    add(sql, "hello")
    add(sql, "fail")

    done = programs.run_to_end("--once", NO_LOG_SUCCESS="1")

    assert done.code == 0
    assert "completed job" not in done.err
    assert READY not in done.err
    assert "ValueError: no such user" in done.err


@pytest.mark.feature("F133")
@pytest.mark.parametrize("variable", [None, "GRAPHILE_LOGGER_DEBUG", "GRAPHILE_WORKER_DEBUG"])
def test_debug_lines_are_logged_on_request(programs, sql, variable):
    programs.write("tasks/hello.py", "def task(payload, ctx):\n    ctx.logger.debug('a detail')\n")
    job = add(sql, "hello")

    done = programs.run_to_end("--once", **({variable: "1"} if variable else {}))

    is_debug = variable is not None
    assert ("DEBUG: a detail" in done.err) is is_debug
    assert (f"DEBUG: started job {job} (hello)" in done.err) is is_debug


@pytest.mark.every_version
@pytest.mark.feature("F132")
@pytest.mark.parametrize(
    ("variables", "level"), [({}, "\x1b[32mINFO\x1b[0m"), ({"NO_COLOR": "1"}, "INFO")]
)
def test_a_terminal_shows_levels_in_color(greeting, variables, level):
    terminal, its_end = pty.openpty()

    done = greeting.start([INSTALLED, "--once"], variables, stderr=its_end)
    done.end()
    os.close(its_end)
    output = os.read(terminal, 10_000).decode()
    os.close(terminal)

    assert output.startswith("[core(pypool-")
    assert f")] {level}: {READY}" in output


# Closed standard streams


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_pipe_without_a_reader_does_not_stop_the_worker(programs, sql, stream):
    programs.write(
        "tasks/hello.py",
        """
        import sys

        def task(payload, ctx):
            print("unread")
            ctx.logger.info("unread")
        """,
    )
    for _ in range(3):
        add(sql, "hello")
    reading, writing = os.pipe()
    os.close(reading)

    worker = programs.start([INSTALLED], {}, **{stream: writing})
    os.close(writing)
    eventually(lambda: jobs(sql) == [], "all jobs are done")

    assert worker.is_running
    assert worker.stop() == 0


@pytest.mark.every_version
@pytest.mark.parametrize("redirection", ["1>&-", "2>&-", "1>&- 2>&-"])
def test_a_worker_runs_without_standard_streams(greeting, sql, redirection):
    add(sql, "hello", name="Ada")

    worker = greeting.start(["sh", "-c", f'exec "$0" {redirection}', INSTALLED], {})
    eventually(lambda: jobs(sql) == [] or not worker.is_running, "the job is done")

    assert worker.is_running, worker.err
    assert worker.stop() == 0


# Health


@pytest.mark.every_version
def test_a_worker_that_claims_jobs_is_healthy_and_ready(greeting):
    port = free_port()

    worker = greeting.worker("--health-port", str(port))

    assert [status(port, path) for path in ("/livez", "/readyz", "/other")] == [200, 200, 404]
    assert worker.stop() == 0


def test_a_worker_is_not_ready_while_its_database_is_unreachable(tmp_path, own_cluster):
    port = free_port()
    with Programs(tmp_path, DATABASE_URL=own_cluster.url()) as programs:
        programs.write("tasks/hello.py", HELLO)
        worker = programs.worker("--health-port", str(port), "--poll-interval", "100")

        before = status(port, "/readyz")
        own_cluster.stop()
        eventually(lambda: status(port, "/readyz") == 503, "the worker is not ready")

        assert before == 200
        assert status(port, "/livez") == 200
        assert worker.stop() == 0


def test_a_database_outage_logs_no_traceback(tmp_path, own_cluster):
    with Programs(tmp_path, DATABASE_URL=own_cluster.url()) as programs:
        programs.write("tasks/hello.py", HELLO)
        worker = programs.worker("--poll-interval", "100", GRAPHILE_LOGGER_DEBUG="1")
        worker.wait_for_line("listening for new jobs")

        own_cluster.stop()
        worker.wait_for_line("fetch failed, retrying")
        worker.wait_for_line("cannot listen for new jobs")

        assert worker.stop() == 0
        assert "Traceback" not in worker.err, worker.err


def is_logged_often(worker: Program, message: str) -> bool:
    return worker.err.count(message) > 2


def test_an_outage_is_one_line_at_its_start_and_one_at_its_end(tmp_path, own_cluster):
    with Programs(tmp_path, DATABASE_URL=own_cluster.url()) as programs:
        programs.write("tasks/hello.py", HELLO)
        # Retries during the outage are logged at level debug.
        worker = programs.worker("--poll-interval", "100", GRAPHILE_LOGGER_DEBUG="1")
        worker.wait_for_line("listening for new jobs")

        own_cluster.halt()
        for message in ("fetch failed, retrying", "cannot listen for new jobs", "heartbeat failed"):
            eventually(partial(is_logged_often, worker, message), f"{message}: {worker.err}")
        own_cluster.launch()
        worker.wait_for_line("database reachable again")

        assert worker.stop() == 0
        warnings = [line for line in worker.err.splitlines() if "WARNING: " in line]
        assert [line.partition("WARNING: ")[2][:22] for line in warnings] == [
            "database unreachable, ",
            "database reachable aga",
        ], worker.err


BLOCKED = """
    from functools import partial

    from graphile_worker._cli.commands import run
    from graphile_worker._cli.health import HealthTimings, health_server
    from graphile_worker._cli.main import main

    # Half as long as by default.
    timings = HealthTimings(max_loop_delay=5.0, loop_check_interval=0.5)
    run.health_server = partial(health_server, timings=timings)

    main()
"""


def test_a_worker_with_a_blocked_loop_is_not_healthy(programs, sql):
    port = free_port()
    programs.write(
        "tasks/block.py", "import time\n\nasync def task(payload):\n    time.sleep(15)\n"
    )
    worker = programs.worker("--health-port", str(port))

    before = status(port, "/livez")
    add(sql, "block")
    eventually(lambda: status(port, "/livez") == 503, "the worker is not alive")
    eventually(lambda: status(port, "/livez") == 200, "it is alive again")

    assert before == 200
    assert worker.stop() == 0


NO_QUERY_TIME = """
    from functools import partial

    from graphile_worker import runner
    from graphile_worker._cli.main import main
    from graphile_worker._lease.heartbeat import HeartbeatTimings
    from graphile_worker._lease.service import LeaseTimings
    from graphile_worker._worker_config import WorkerConfig, WorkerTimings

    # The default of 10 s is too long for a test.
    heartbeat = HeartbeatTimings(max_query_timeout_seconds=0.0)
    timings = WorkerTimings(lease=LeaseTimings(heartbeat=heartbeat))
    runner.WorkerConfig = partial(WorkerConfig, timings=timings)

    main()
"""


def test_a_database_that_does_not_answer_at_the_start_is_reported_in_one_line(programs):
    programs.write("tasks/hello.py", HELLO)
    worker = programs.python(NO_QUERY_TIME)

    assert worker.end() == 1
    assert "graphile-worker: no answer within 0 s" in worker.err
    assert "Traceback" not in worker.err


def test_a_port_in_use_is_reported_in_one_line(greeting):
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        done = greeting.run_to_end("--health-port", str(port))

    assert_one_line(done)
    assert str(port) in done.err


def test_an_invalid_port_is_rejected(greeting):
    done = greeting.run_to_end("--health-port", "70000")

    assert done.code in (1, 2)
    assert "Traceback" not in done.err, done.err
    assert "70000" in done.err


# Migrations beside a running worker


def test_a_breaking_schema_level_stops_a_running_worker_with_exit_code_57(greeting, sql):
    worker = greeting.worker(GRAPHILE_LOGGER_DEBUG="1")
    worker.wait_for_line("listening for new jobs")

    with sql.connection.transaction():
        sql.run("insert into :schema.migrations (id, breaking) values (21, true)")
        sql.run("select pg_notify('worker:migrate', '{\"migrationNumber\":21,\"breaking\":true}')")

    assert worker.end() == 57
    last = worker.err.splitlines()[-1]
    assert last.startswith("graphile-worker: ")
    assert "level 21" in last


def test_a_compatible_schema_level_does_not_stop_a_worker(greeting, sql):
    worker = greeting.worker(GRAPHILE_LOGGER_DEBUG="1")
    worker.wait_for_line("listening for new jobs")

    with sql.connection.transaction():
        sql.run("insert into :schema.migrations (id) values (21)")
        sql.run("select pg_notify('worker:migrate', '{\"migrationNumber\":21,\"breaking\":false}')")
    add(sql, "hello", name="Ada")
    worker.wait_for_line("Hello, Ada")

    assert worker.stop() == 0


# Helpers


def add(sql: Sql, identifier: str, **payload: object) -> int:
    """Add a job, and return its id."""
    text = json.dumps(payload)
    job_id: int = sql.value("select id from :schema.add_job($1, $2::json)", identifier, text)
    return job_id


def jobs(sql: Sql) -> list[tuple[str, int, str | None]]:
    """Return the task, attempts and lock of every job."""
    rows = sql.run("select task_identifier, attempts, locked_by from :schema.jobs order by id")
    return [(row[0], row[1], row[2]) for row in rows]


def list_schemas(database: TestDatabase) -> set[str]:
    behind = Sql(database.dsn, database.schema)
    rows = behind.run("select nspname from pg_namespace")
    behind.close()
    return {name for (name,) in rows}


def assert_one_line(done: Program) -> None:
    """Assert that the command failed with one line of text and exit code 1."""
    assert "Traceback" not in done.err, done.err
    assert len(done.err.splitlines()) == 1, done.err
    assert done.err.startswith("graphile-worker: ")
    assert (done.code, done.out) == (1, "")
