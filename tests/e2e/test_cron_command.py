"""`graphile-worker cron`, and the crontab of a worker."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.processes import Program, Programs, eventually
from tests.support.sql import Sql

# A time zone that needs no time zone database.
FAR = {"TZ": "FAR-5:30"}
NOWHERE = "postgres://nobody@127.0.0.1:1/nowhere"

RUN = re.compile(
    r"  (?P<utc>\d{4}-\d\d-\d\d \d\d:\d\d) UTC"
    r"   (?P<day>\w{3}) (?P<local>\d{4}-\d\d-\d\d \d\d:\d\d) (?P<zone>\w+)"
    r"   in (?P<span>.+)"
)

CRONTAB = """
    # Scheduled tasks.
    30 4 * * 1 send_weekly_email
    0 */4 * * * rollup ?id=often&queue=sums&max=3&priority=-1&jobKey=sum {depth: 2}
"""

BROKEN = """\
    61 * * * * first
    * * * * * second ?wrong=1&max=0
    # A comment.
    * * * * third
    * * * * * fourth {unfinished: }
"""

# The messages about BROKEN.
PROBLEMS = [
    "line 1, column 1: expected a minute from 0 to 59, got '61'",
    "line 2, column 19: expected one of id, fill, max, queue, jobKey, jobKeyMode, priority, "
    "got 'wrong'",
    "line 2, column 27: expected another value for max",
    "line 4, column 9: expected a day of the week from 0 to 7",
    "line 5, column 31: expected a payload in JSON5, got '}'",
]

HELLO = """
    async def task(payload, ctx):
        pass
"""

SHOP = """
    from datetime import timedelta

    from graphile_worker import App, Cron, JobContext

    app = App()

    @app.cron(Cron.daily_at(8), tz="Asia/Tokyo")
    @app.cron(Cron.weekly_on("monday", 4, 30), id="weekly", payload={"limit": 3})
    @app.task(queue_name="reports")
    async def report(limit: int = 10):
        pass

    @app.cron(Cron.every_minute(), id="clean", backfill=timedelta(hours=1))
    @app.task
    async def clean_up(ctx: JobContext):
        print("backfilled", ctx.cron.ts.isoformat(), ctx.cron.backfilled, flush=True)
"""


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Programs]:
    """Programs in an empty folder, and a database that does not answer."""
    with Programs(tmp_path, DATABASE_URL=NOWHERE) as programs:
        yield programs


# Check


@pytest.mark.feature("F245", "F246")
@pytest.mark.parametrize(("name", "arguments"), [("crontab", ()), ("other", ("other",))])
def test_check_reads_a_given_file_or_crontab_without_a_database(alone, name, arguments):
    alone.write(name, CRONTAB)

    done = alone.without_fork.run_to_end("cron", "check", *arguments)

    assert (done.code, done.err) == (0, "")
    assert done.out == f"{name}: 2 items, nothing wrong\n"


def test_check_prints_one_line_per_problem_and_exits_with_1(alone):
    alone.write("crontab", BROKEN)

    done = alone.run_to_end("cron", "check")

    assert (done.code, done.out) == (1, "")
    assert_all_problems_are_reported(done, "crontab")


@pytest.mark.feature("F265")
def test_check_lists_all_items_that_share_an_identifier(alone):
    lines = ("a ?id=one", "one", "b", "a ?id=two", "b")
    alone.write("crontab", "\n".join(f"0 4 * * * {line}" for line in lines))

    done = alone.run_to_end("cron", "check")

    assert done.code == 1
    places = [re.findall(r"line (\d).*got '(\w+)'", line) for line in done.err.splitlines()]
    assert places == [[("1", "one")], [("2", "one")], [("3", "b")], [("5", "b")]]
    assert "expected a unique identifier: add ?id=" in done.err


def test_check_reports_a_missing_file(alone):
    done = alone.run_to_end("cron", "check", "nowhere")

    assert (done.code, done.out) == (1, "")
    assert done.err == (
        "graphile-worker: the crontab nowhere cannot be read: No such file or directory\n"
    )


def test_check_reads_the_items_of_an_app_with_and_without_a_file(alone):
    alone.write("shop.py", SHOP)

    of_app = alone.run_to_end("cron", "check", "--app", "shop:app")
    alone.write("crontab", CRONTAB)
    of_both = alone.run_to_end("cron", "check", GRAPHILE_WORKER_APP="shop:app")

    assert (of_app.code, of_app.err) == (of_both.code, of_both.err) == (0, "")
    assert of_app.out == "shop:app: 3 items, nothing wrong\n"
    assert of_both.out == "shop:app and crontab: 5 items, nothing wrong\n"


def test_check_skips_the_permissions_of_the_crontab_if_unsafe_tasks_are_allowed(alone):
    alone.write("shop.py", SHOP)
    alone.write("crontab", CRONTAB).chmod(0o666)

    for app in ((), ("--app", "shop:app")):
        rejected = alone.run_to_end(*app, "cron", "check")
        by_flag = alone.run_to_end("--allow-unsafe-tasks", *app, "cron", "check")
        by_variable = alone.run_to_end(
            *app, "cron", "check", GRAPHILE_WORKER_ALLOW_UNSAFE_TASKS="true"
        )

        assert (rejected.code, by_flag.code, by_variable.code) == (1, 0, 0)
        assert "the crontab crontab is not trusted" in rejected.err


def test_check_warns_about_a_step_that_leads_past_its_field(alone):
    alone.write("crontab", "*/70 * * * * often")

    done = alone.run_to_end("cron", "check")

    assert (done.code, done.out) == (0, "crontab: 1 item, nothing wrong\n")
    assert done.err == "crontab: line 1, column 1: */70 means only 0: the next value exceeds 59\n"


# Next


def test_next_prints_the_next_runs_of_each_item_in_utc_and_local_time(programs):
    programs.write("crontab", CRONTAB)

    done = programs.run_to_end("cron", "next", **FAR)

    assert (done.code, done.err) == (0, "")
    items = parse_runs(done)
    assert list(items) == [
        "send_weekly_email (task send_weekly_email), last ran never",
        "often (task rollup), last ran never",
    ]
    for times in items.values():
        assert len(times) == 3
        assert {utc + timedelta(hours=5, minutes=30) - local for utc, local, _ in times} == {
            timedelta(0)
        }
        assert {zone for _, _, zone in times} == {"FAR"}
    weekly, often = ([utc for utc, _, _ in times] for times in items.values())
    assert {(utc.isoweekday(), utc.hour, utc.minute) for utc in weekly} == {(1, 4, 30)}
    assert {utc.hour % 4 for utc in often} == {0}
    assert_first_is_within(weekly, timedelta(weeks=1))
    assert_first_is_within(often, timedelta(hours=4))


def test_count_sets_the_number_of_runs(programs):
    programs.write("crontab", CRONTAB)

    one, five = (
        programs.run_to_end("cron", "next", "--count", "1"),
        programs.run_to_end("cron", "next", "--count", "5"),
    )

    assert [len(times) for times in parse_runs(one).values()] == [1, 1]
    assert [len(times) for times in parse_runs(five).values()] == [5, 5]


def test_next_prints_never_for_an_item_that_never_runs(alone):
    alone.write("crontab", "0 0 31 2 * party")

    assert "last ran never\n  never\n" in alone.run_to_end("cron", "next").out


@pytest.mark.parametrize(
    ("ago", "age"),
    [("20 minutes", r"20m(\d+s)?"), ("90 minutes", "1h30m"), ("2 days 3 hours", "2d3h")],
)
def test_next_prints_the_time_since_the_last_run(programs, sql, ago, age):
    programs.write("crontab", CRONTAB)
    record_item(sql, "often", since="9 days", ran=ago)

    done = programs.run_to_end("cron", "next")

    assert re.search(rf"^often \(task rollup\), last ran {age} ago$", done.out, re.MULTILINE)
    assert "send_weekly_email (task send_weekly_email), last ran never\n" in done.out


def test_next_works_without_a_database(alone):
    alone.write("crontab", CRONTAB)

    done = alone.run_to_end("cron", "next", **FAR)

    assert done.code == 0
    assert [len(times) for times in parse_runs(done).values()] == [3, 3]
    [line] = done.err.splitlines()
    assert line.startswith("graphile-worker: last runs are unknown: ")


def test_next_works_without_a_schema(alone, empty_database):
    alone.write("crontab", CRONTAB)

    done = alone.run_to_end("cron", "next", "-c", empty_database.url)

    assert done.code == 0
    assert [len(times) for times in parse_runs(done).values()] == [3, 3]
    assert "is not installed" in done.err


@pytest.mark.feature("F291")
def test_next_prints_the_items_of_an_app_in_their_time_zones(alone):
    alone.write("shop.py", SHOP)

    done = alone.run_to_end("cron", "next", "--app", "shop:app", **FAR)

    assert done.code == 0
    items = {item.partition(",")[0]: times for item, times in parse_runs(done).items()}
    assert set(items) == {"weekly (task report)", "report (task report)", "clean (task clean_up)"}
    tokyo = items["report (task report)"]
    assert {(utc.hour, local.hour, zone) for utc, local, zone in tokyo} == {(23, 8, "JST")}
    assert {zone for _, _, zone in items["weekly (task report)"]} == {"FAR"}


def test_the_connection_flag_works_before_and_after_the_subcommand(alone, database):
    alone.write("crontab", CRONTAB)
    flags = ("-c", database.url, "-s", database.schema)

    for arguments in ((*flags, "cron", "next"), ("cron", "next", *flags)):
        done = alone.run_to_end(*arguments)
        assert (done.code, done.err) == (0, "")


@pytest.mark.parametrize("arguments", [("next",), ("run", "often")])
def test_without_items_the_error_names_the_sources_of_items(alone, arguments):
    done = alone.run_to_end("cron", *arguments)

    assert (done.code, done.out) == (1, "")
    assert "no cron items. Write ./crontab, or pass --crontab or --app." in done.err


# Run


def test_run_adds_the_job_of_an_item_now(programs, sql):
    programs.write("crontab", CRONTAB)

    done = programs.run_to_end("cron", "run", "often")

    assert (done.code, done.err) == (0, "")
    [job] = sql.run(
        "select id::text, task_identifier, queue_name, max_attempts, priority, key, "
        "abs(extract(epoch from now() - run_at)) < 60 from :schema.jobs"
    )
    assert done.out == f"added job {job[0]} (rollup)\n"
    assert job[1:] == ("rollup", "sums", 3, -1, "sum", True)
    payload = sql.value("select payload from :schema._private_jobs")
    assert payload["depth"] == 2
    assert payload["_cron"]["backfilled"] is False
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:00\.000Z", payload["_cron"]["ts"])
    since = datetime.now(UTC) - datetime.fromisoformat(payload["_cron"]["ts"])
    assert timedelta(0) <= since < timedelta(minutes=3)


def test_run_does_not_replace_the_scheduled_run(programs, sql):
    programs.write("crontab", CRONTAB)
    record_item(sql, "often", since="9 days", ran="4 hours")
    before = sql.run("select * from :schema._private_known_crontabs")

    codes = [
        programs.run_to_end("cron", "run", item).code for item in ("often", "send_weekly_email")
    ]

    assert codes == [0, 0]
    assert sql.run("select * from :schema._private_known_crontabs") == before


def test_run_lists_the_known_items_for_an_unknown_one(programs, sql):
    programs.write("crontab", CRONTAB)

    done = programs.run_to_end("cron", "run", "rollup")

    assert (done.code, done.out) == (1, "")
    assert done.err == (
        "graphile-worker: unknown cron item 'rollup'. Known items: send_weekly_email, often\n"
    )
    assert jobs(sql) == []


@pytest.mark.feature("F291")
def test_run_adds_the_job_of_an_item_in_code(programs, sql):
    programs.write("shop.py", SHOP)

    done = programs.run_to_end("cron", "run", "weekly", GRAPHILE_WORKER_APP="shop:app")

    assert (done.code, done.err) == (0, "")
    assert jobs(sql) == ["report"]
    assert sql.value("select payload ->> 'limit' from :schema._private_jobs") == "3"
    assert sql.value("select queue_name from :schema.jobs") == "reports"


# The worker


@pytest.mark.feature("F198", "F246")
@pytest.mark.parametrize(
    ("path", "arguments"),
    [("crontab", ()), ("elsewhere/table", ("--crontab", "elsewhere/table"))],
)
def test_a_worker_reads_a_given_crontab_or_the_one_of_the_directory(programs, sql, path, arguments):
    programs.write("tasks/send_weekly_email.py", HELLO)
    programs.write("tasks/rollup.py", HELLO)
    programs.write(path, CRONTAB)

    worker = programs.worker(*arguments)

    wait_until_registered(sql, "often", "send_weekly_email")
    assert "WARNING" not in worker.err
    assert "no ./crontab found" not in worker.err


@pytest.mark.feature("F198")
def test_a_given_crontab_overrides_the_one_of_the_directory(programs, sql):
    programs.write("tasks/hello.py", HELLO)
    programs.write("crontab", "0 4 * * * hello ?id=here")
    programs.write("other", "0 4 * * * hello ?id=there")

    programs.worker("--crontab", "other")

    wait_until_registered(sql, "there")


@pytest.mark.feature("F246")
@pytest.mark.parametrize(
    ("debug", "expected"),
    [("1", ["[core] DEBUG: no ./crontab found, no scheduled tasks"]), ("", [])],
)
def test_a_worker_without_a_crontab_runs_and_logs_it_for_debugging_only(
    programs, sql, debug, expected
):
    programs.write("tasks/hello.py", HELLO)

    worker = programs.worker(GRAPHILE_WORKER_DEBUG=debug)
    sql.run("select :schema.add_job('hello')")
    eventually(lambda: jobs(sql) == [], "the job is done")

    lines = [line for line in worker.err.splitlines() if "crontab" in line]
    assert lines == expected
    assert sql.run("select * from :schema._private_known_crontabs") == []


@pytest.mark.feature("F198")
def test_a_given_crontab_must_exist(programs):
    programs.write("tasks/hello.py", HELLO)

    done = programs.run_to_end("--crontab", "nowhere")

    assert done.code == 1
    assert "the crontab nowhere cannot be read: No such file or directory" in done.err


def test_a_worker_does_not_start_with_a_broken_crontab(programs, sql):
    programs.write("tasks/first.py", HELLO)
    programs.write("crontab", BROKEN)

    done = programs.run_to_end()

    assert done.code == 1
    assert_all_problems_are_reported(done, "crontab")
    assert sql.run("select * from :schema._private_known_crontabs") == []


def test_a_supervisor_reports_a_broken_crontab_once(programs):
    programs.write("tasks/first.py", HELLO)
    programs.write("crontab", BROKEN)

    done = programs.run_to_end("--processes", "2")

    assert done.code == 1
    assert_all_problems_are_reported(done, "crontab")


@pytest.mark.feature("F291")
def test_a_crontab_that_names_an_unknown_task_is_a_warning(programs, sql):
    programs.write("tasks/rollup.py", HELLO)
    programs.write("crontab", "0 4 * * * rollup\n0 4 * * * rolup ?id=typo")

    worker = programs.worker()

    # Another worker may have the task, so the item is registered.
    wait_until_registered(sql, "rollup", "typo")
    lines = [line for line in worker.err.splitlines() if "WARNING" in line]
    assert lines == [
        "[core] WARNING: cron item 'typo' adds jobs of task 'rolup', which this worker does not run"
    ]


@pytest.mark.feature("F245", "F291")
def test_a_worker_of_an_app_runs_its_items_and_those_of_the_crontab(programs, sql):
    programs.write("shop.py", SHOP)
    programs.write("crontab", "0 4 * * * report ?id=in_file")
    record_item(sql, "clean", since="3 minutes")

    worker = programs.worker("--app", "shop:app")

    wait_until_registered(sql, "clean", "in_file", "report", "weekly")
    eventually(lambda: len(worker.out.splitlines()) >= 3, "the backfilled jobs have run")
    for line in worker.out.splitlines()[:3]:
        assert re.fullmatch(r"backfilled \d{4}-\d\d-\d\dT\d\d:\d\d:00\+00:00 True", line)


@pytest.mark.feature("F265")
def test_an_item_in_code_and_one_in_the_crontab_need_different_identifiers(programs):
    programs.write("shop.py", SHOP)
    programs.write("crontab", "0 4 * * * report ?id=weekly")

    done = programs.run_to_end("--app", "shop:app")

    assert done.code == 1
    assert "several cron items are called 'weekly': set a different identifier for each" in done.err


def test_a_worker_with_once_does_not_read_the_crontab(programs, sql):
    programs.write("shop.py", SHOP)
    programs.write("crontab", CRONTAB)
    record_item(sql, "clean", since="3 minutes")

    done = programs.run_to_end("--app", "shop:app", "--once")

    assert (done.code, done.out) == (0, "")
    assert sql.run("select identifier from :schema._private_known_crontabs") == [("clean",)]


def parse_runs(done: Program) -> dict[str, list[tuple[datetime, datetime, str]]]:
    """Return the runs of each item: in UTC, in local time, and the time zone."""
    items: dict[str, list[tuple[datetime, datetime, str]]] = {}
    for line in done.out.splitlines():
        if not line.startswith(" "):
            items[line] = []
            continue
        match = RUN.fullmatch(line)
        assert match is not None, line
        utc, local = (datetime.fromisoformat(match[name]) for name in ("utc", "local"))
        assert match["day"] == f"{local:%a}"
        list(items.values())[-1].append((utc, local, match["zone"]))
    return items


def jobs(sql: Sql) -> list[str]:
    return [name for (name,) in sql.run("select task_identifier from :schema.jobs order by id")]


def record_item(sql: Sql, identifier: str, *, since: str, ran: str | None = None) -> None:
    """Record that workers know an item since a time ago, and when it ran last."""
    sql.run(
        "insert into :schema._private_known_crontabs (identifier, known_since, last_execution) "
        "values ($1, now() - $2::text::interval, now() - $3::text::interval)",
        identifier,
        since,
        ran,
    )


def wait_until_registered(sql: Sql, *identifiers: str) -> None:
    query = "select identifier from :schema._private_known_crontabs order by identifier"
    expected = [(identifier,) for identifier in sorted(identifiers)]
    eventually(lambda: sql.run(query) == expected, f"the items {identifiers} are registered")


def assert_first_is_within(times: list[datetime], period: timedelta) -> None:
    ahead = times[0].replace(tzinfo=UTC) - datetime.now(UTC)
    assert timedelta(minutes=-1) < ahead <= period


def assert_all_problems_are_reported(done: Program, file: str) -> None:
    lines = [line for line in done.err.splitlines() if "line " in line]
    assert len(lines) == len(PROBLEMS)
    for line, problem in zip(lines, PROBLEMS, strict=True):
        assert line.startswith(f"graphile-worker: {file}: {problem}")
