"""The installed command with a config file: `config` and workers."""

import json
import re
import signal

import pytest

from graphile_worker import sync
from tests.support.processes import READY, Program, eventually
from tests.support.sql import Sql

CANARY = "s3cr3t-canary"

HELLO = """
    async def task(payload, ctx):
        print("Hello", payload["name"], flush=True)
"""


def test_config_needs_no_database_and_no_tasks(programs):
    done = programs.without_fork.run_to_end("config", DATABASE_URL=None)

    assert (done.code, done.err) == (0, "")
    assert re.search(r"^concurrency +1 +default$", done.out, re.MULTILINE)


def test_config_reports_a_mistake_in_one_line(programs):
    programs.write("graphile-worker.toml", "concurrenc = 4\n")

    done = programs.run_to_end("config")

    assert done.code == 1
    assert done.out == ""
    assert done.err == (
        "graphile-worker: graphile-worker.toml: unknown setting 'concurrenc', did you mean "
        "'concurrency'?\n"
    )


def test_config_takes_flags_before_and_after_its_name(programs):
    before = programs.run_to_end("-j", "3", "--no-listen", "config")
    after = programs.run_to_end("config", "-j", "3", "--no-listen")

    assert before.out == after.out
    assert re.search(r"^listen +off +--no-listen$", after.out, re.MULTILINE)


def test_config_hides_the_password(programs):
    done = programs.run_to_end("config", DATABASE_URL=f"postgres://me:{CANARY}@db.example/shop")

    assert done.code == 0
    assert "password=***" in done.out
    assert CANARY not in done.out + done.err


def test_config_shows_what_the_function_of_the_app_returns_without_the_password(programs):
    for body, code, text in (
        (
            f"return 'postgres://me:{CANARY}@db.example/shop'",
            0,
            "password=*** dbname=shop host=db.example",
        ),
        ("return None", 1, "the connection string returned NoneType, expected a string"),
        ("raise LookupError('no token')", 1, "string raised LookupError: no token"),
    ):
        app = "from graphile_worker import App\n\ndef issue():\n    BODY\n\napp = App(issue)\n"
        programs.write("shop.py", app.replace("BODY", body))
        done = programs.run_to_end("config", "--app", "shop")

        assert (done.code, done.err.count("\n")) == (code, code), done.err
        assert text in done.out + done.err
        assert CANARY not in done.out + done.err


def test_config_shows_the_chosen_tasks_and_rejects_names_without_a_task(programs):
    app = "from graphile_worker import App\n\napp = App()\n"
    tasks = "\n\n@app.task\nasync def mail(): ...\n\n\n@app.task\nasync def report(): ...\n"
    programs.write("shop.py", app + tasks)
    programs.write("graphile-worker.toml", 'app = "shop"\nexcept_tasks = ["report"]\n')

    flags = ("--only", "ma*", "--only=mail, report", "--forbidden-flags", "large")
    done = programs.run_to_end("config", *flags)
    listed = json.loads(programs.run_to_end("config", "--json", *flags).out)
    unknown = programs.run_to_end("config", GRAPHILE_WORKER_ONLY_TASKS="mails")
    nothing = programs.run_to_end("config", "--only", ",")

    assert (done.code, done.err) == (0, "")
    rows = {line.split()[0]: line.split(maxsplit=1)[1] for line in done.out.splitlines()}
    assert rows["only_tasks"].split() == ["ma*,mail,report", "--only"]
    assert rows["except_tasks"].split() == ["report", "graphile-worker.toml"]
    assert rows["forbidden_flags"].split() == ["large", "--forbidden-flags"]
    assert listed["only_tasks"]["value"] == ["ma*", "mail", "report"]
    assert (unknown.code, unknown.out) == (1, "")
    assert unknown.err == (
        "graphile-worker: only_tasks: unknown task 'mails', did you mean 'mail'? "
        "Known tasks: mail, report\n"
    )
    assert nothing.err == "graphile-worker: only_tasks must name at least one task\n"


@pytest.mark.parametrize("arguments", [["-C", "bad.toml"], ["-C", "bad.toml", "migrate"]])
def test_a_broken_config_file_is_reported_in_one_line(programs, arguments):
    programs.write("bad.toml", "concurrency = 1\nconcurrency\n")
    programs.write("tasks/hello.py", HELLO)

    done = programs.run_to_end(*arguments)

    assert done.code == 1
    assert re.fullmatch(r"graphile-worker: bad\.toml is not TOML: .*line 2.*\n", done.err)


@pytest.mark.parametrize(
    "connection",
    [f"postgres://me:{CANARY}@127.0.0.1:1/shop", f"host=127.0.0.1 port=1 password={CANARY}"],
)
def test_a_worker_that_cannot_connect_does_not_print_the_password_of_the_file(programs, connection):
    programs.write("graphile-worker.toml", f'connection = "{connection}"\n')
    programs.write("tasks/hello.py", HELLO)

    done = programs.run_to_end(DATABASE_URL=None)

    assert done.code == 1
    assert CANARY not in done.out + done.err


def test_a_worker_uses_a_config_file_of_another_directory(programs, database, sql):
    programs.write("deploy/jobs/hello.py", HELLO)
    programs.write(
        "deploy/worker.toml", f'connection = "{database.url}"\ntasks = "jobs"\nlisten = false\n'
    )
    sql.run("""select from :schema.add_job('hello', '{"name": "Ada"}')""")

    done = programs.run_to_end("--once", "-C", "deploy/worker.toml", DATABASE_URL=None)

    assert (done.code, done.out) == (0, "Hello Ada\n"), done.err


def test_a_task_imports_modules_beside_its_folder_and_of_the_current_directory(programs, sql):
    programs.write("here.py", "NAME = 'here'\n")
    programs.write("deep/beside.py", "NAME = 'beside'\n")
    programs.write(
        "deep/jobs/hello.py",
        """
        import beside, here

        def task(payload):
            print(beside.NAME, here.NAME, flush=True)
        """,
    )
    sql.run("select from :schema.add_job('hello', '{}')")

    done = programs.run_to_end("--once", "--tasks", "deep/jobs")

    assert (done.code, done.out) == (0, "beside here\n"), done.err


def test_subcommands_read_the_file(programs, database):
    programs.write("pyproject.toml", '[tool.graphile-worker]\nschema = "of_the_file"\n')

    done = programs.run_to_end("migrate", GRAPHILE_WORKER_SCHEMA=None)

    assert done.out == "schema of_the_file is at level 20\n", done.err


def test_the_companion_schema_of_the_config_file_is_created(programs, database):
    programs.write("graphile-worker.toml", 'schema = "one"\next_schema = "beside_one"\n')
    programs.write("tasks/hello.py", HELLO)

    made = programs.run_to_end("migrate", GRAPHILE_WORKER_SCHEMA=None)
    worked = programs.run_to_end("--once", GRAPHILE_WORKER_SCHEMA=None)
    printed = programs.run_to_end("migrate", "--sql", GRAPHILE_WORKER_SCHEMA=None)

    behind = Sql(database.dsn, "one")
    found = {name for (name,) in behind.run("select nspname from pg_namespace")}
    behind.close()
    assert (made.code, worked.code) == (0, 0), worked.err
    assert {"one", "beside_one"} <= found
    assert "one_ext" not in found
    assert '"beside_one"' in printed.out


def test_cron_reads_the_file(programs, database):
    programs.write("graphile-worker.toml", 'crontab = "plan"\n')
    programs.write("plan", "0 4 * * * report\n")

    done = programs.run_to_end("cron", "run", "report")

    assert done.code == 0, done.err
    with sync.Client(database.dsn, schema=database.schema) as client:
        job = client.get_job(int(done.out.split()[2]))
    assert job is not None
    assert job.task_identifier == "report"


def test_the_error_about_missing_tasks_names_the_config_file(programs):
    done = programs.run_to_end()

    assert done.code == 1
    assert "graphile-worker.toml" in done.err


def test_a_given_tasks_folder_must_exist(programs):
    done = programs.run_to_end("--once", "--tasks", "nowhere")

    assert done.code == 1
    assert "no tasks folder at nowhere" in done.err


def test_supervised_processes_have_the_settings_of_their_supervisor(programs, sql):
    programs.write("tasks/hello.py", HELLO)
    programs.write("tasks/other.py", HELLO)
    programs.write(
        "worker.toml",
        """
        processes = 2
        concurrency = 3
        max_pool_size = 9
        log_format = "json"
        only_tasks = ["hell*"]
        [recovery]
        lease_duration = "7s"
        """,
    )
    running = programs.without_fork.command("-C", "worker.toml", GRAPHILE_WORKER_MAX_POOL_SIZE="8")
    eventually(lambda: running.err.count(READY) == 2, "both look for jobs")

    found = leases(sql)
    code = running.stop(signal.SIGTERM)

    assert code == 0
    assert len(started(running)) == 2
    assert all(json.loads(line) for line in running.err.splitlines())
    assert running.err.count("(task names: 'hello')") == 2
    assert found == ["00:00:07", "00:00:07"]


def started(running: Program) -> list[str]:
    return re.findall(r"started process (\d+)", running.err)


def leases(sql: Sql) -> list[str]:
    return [lease for (lease,) in sql.run("select lease::text from :ext_schema.pools")]
