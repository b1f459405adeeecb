"""`graphile-worker jobs`, `workers` and `add`: their output, changes and exit codes."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from graphile_worker._sql.queries.workers import register_pool
from tests.support.job_table import NODE
from tests.support.pools import open_session, queue_lock
from tests.support.shell import CommandResult, Shell

pytestmark = pytest.mark.single_version

PYTHON_POOL = "pypool-0123456789abcdef01"


@pytest.fixture
def shell(database, tmp_path, monkeypatch, capsys) -> Iterator[Shell]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield Shell(database, tmp_path, monkeypatch, capsys)
    monkeypatch.undo()
    time.tzset()


def parse_json(result: CommandResult) -> Any:
    assert (result.code, result.err) == (0, "")
    return json.loads(result.out)


def register(database, pool_id: str = PYTHON_POOL, **details: Any) -> None:
    """Register a Python pool with a heartbeat."""
    with open_session(database) as connection:
        connection.run(register_pool(pool_id, timedelta(hours=1), details))


# list


def test_jobs_are_listed_the_newest_first(table, shell):
    first = table.add_job_in_state("failed", last_error="e'KeyError: x\\nmore'", key="'k'")
    second = table.add_job_in_state("retrying")

    result = shell("jobs", "list")

    head, *lines = result.out.splitlines()
    assert (result.code, result.err) == (0, "")
    assert " ".join(head.split()) == "id task queue state when run at attempts key error"
    assert [int(line.split()[0]) for line in lines] == [second, first]
    assert "retrying  in 1h" in lines[0] or "retrying  in 59m" in lines[0]
    assert lines[1].endswith("25/25  k    KeyError: x")


@pytest.mark.parametrize(
    "arguments", [["task:a", "state:failed"], ["--where", "task:a state:failed"], ["--where",
        "task:a", "--where", "-state:ready"], ["-task:b", "-state:ready"]]
)  # fmt: skip
def test_a_filter_can_be_arguments_or_where(table, shell, arguments):
    job = table.add_job_in_state("failed", task="a")
    table.add_job_in_state("failed", task="b")
    table.add_job_in_state("ready", task="a")

    result = shell("jobs", "list", *arguments, "--json")

    assert [each["id"] for each in parse_json(result)["jobs"]] == [job]


def test_a_list_in_json_has_times_and_the_start_of_the_next_page(table, shell):
    ids = [table.add_job() for _ in range(3)]

    page = parse_json(shell("jobs", "list", "--json", "--limit", 2))
    rest = parse_json(shell("jobs", "list", "--json", "--limit", 2, "--before", page["before"]))

    assert [job["id"] for job in page["jobs"]] == [ids[2], ids[1]]
    assert [job["id"] for job in rest["jobs"]] == [ids[0]]
    assert rest["before"] is None
    assert datetime.fromisoformat(page["now"]).utcoffset() == timedelta(0)
    assert page["jobs"][0]["state"] == "ready"
    assert datetime.fromisoformat(page["jobs"][0]["run_at"]) < datetime.now(UTC)


def test_a_role_without_policies_gets_a_message_about_row_level_security(
    table, shell, database, sql
):
    table.add_job()
    role = f"reader_{database.name}"
    sql.run(f"create role {role} login")
    sql.run(f"grant usage on schema :schema to {role}")
    sql.run(f"grant select on all tables in schema :schema to {role}")
    dsn = make_conninfo(database.dsn, user=role)

    listed = shell("jobs", "list", "-c", dsn)
    as_json = shell("jobs", "list", "--json", "-c", dsn)
    top = shell("top", "--once", "--interval", "500ms", "-c", dsn)
    sql.run(f"drop owned by {role}")
    sql.run(f"drop role {role}")

    for result in (listed, as_json):
        assert result.code == 0
        assert "row level security hides all jobs from this role" in result.err
    assert json.loads(as_json.out)["jobs"] == []
    assert "row level security hides all jobs from this role" in top.out


def test_a_failed_job_shows_when_it_failed_and_no_time_to_run(table, shell, sql):
    ours = table.add_job_in_state("failed")
    node = table.add_job_in_state("failed")
    by_hand = table.add_job_in_state("failed")
    nine_days, two_hours = "now() - interval '9 days'", "now() - interval '2 hours'"
    # Node adds the backoff to run_at, even after the last attempt.
    for job, run_at, updated_at in (
        (ours, two_hours, nine_days),
        (node, f"{two_hours} + exp(10) * interval '1 second'", nine_days),
        (by_hand, nine_days, two_hours),
    ):
        sql.run(
            "update :schema._private_jobs set created_at = now() - interval '9 days', "
            f"updated_at = {updated_at}, run_at = {run_at} where id = $1",
            job,
        )

    _, *lines = shell("jobs", "list").out.splitlines()
    listed = parse_json(shell("jobs", "list", "--json"))
    shown = shell("jobs", "show", node).out

    for line in lines:
        assert "failed 2h ago" in line
        assert "UTC" not in line
    now = datetime.fromisoformat(listed["now"])
    for job in listed["jobs"]:
        since = now - datetime.fromisoformat(job["failed_at"])
        assert abs(since - timedelta(hours=2)) < timedelta(minutes=1)
    assert "failed at" in shown
    assert ", 2h ago" in shown


def test_a_failed_batch_shows_the_error_of_its_first_item(table, shell):
    table.add_job_in_state(
        "failed", last_error="e'Batch failures:\\nno such address\\nno such user'"
    )

    [_, line] = shell("jobs", "list").out.splitlines()

    assert line.endswith("Batch failures: no such address")


def test_a_full_page_shows_how_to_get_the_next(table, shell):
    ids = [table.add_job() for _ in range(2)]

    assert shell("jobs", "list", "--limit", 1).err == f"more jobs: add --before {ids[1]}\n"
    assert shell("jobs", "list", "task:nothing").err == "no jobs\n"


def test_text_from_the_database_cannot_move_the_cursor(table, shell):
    table.add_job("a\x1b[2Jb", last_error="e'\\x1b[31mred\\u202e'", key="e'k\\nl'")

    result = shell("jobs", "list")

    assert "a\\x1b[2Jb" in result.out
    assert "\\x1b[31mred\\u202e" in result.out
    assert "k\\nl" in result.out
    assert "\x1b" not in result.out


def test_an_invalid_filter_shows_the_column_and_exits_with_2(shell):
    result = shell("jobs", "list", "age:>banana")

    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(
        "graphile-worker: filter, column 5: expected a duration with < or >"
    )


def test_a_list_that_times_out_exits_with_1(table, shell, sql):
    table.add_job()
    sql.run(
        "insert into :schema._private_jobs (task_id, last_error) "
        "select 1, repeat('ab', 5000) from generate_series(1, 2000)"
    )

    result = shell("jobs", "list", "error:*a*a*a*a*c", "--timeout", "1ms")

    assert result.code == 1
    assert "took longer than 0.001 s. Narrow the filter" in result.err


def test_a_missing_schema_exits_with_1(shell):
    for arguments in (["jobs", "list"], ["workers", "list"], ["jobs", "show", "1"]):
        result = shell(*arguments, "-s", "nowhere")
        assert (result.code, result.out) == (1, "")
        assert "schema 'nowhere' is not installed" in result.err


@pytest.mark.parametrize(
    "line",
    [
        ["-s", "nowhere", "jobs", "list"],
        ["jobs", "-s", "nowhere", "list"],
        ["jobs", "list", "-s", "nowhere"],
    ],
    ids=" ".join,
)
def test_database_flags_can_be_anywhere_on_the_command_line(shell, line):
    assert "schema 'nowhere' is not installed" in shell(*line).err


# show


def test_a_job_is_shown_in_full(database, table, shell):
    register(database, tasks=["charge"])
    job = table.add_job(
        "charge",
        job_queue_id=table.add_queue("billing"),
        key="'k'",
        flags="'{\"vip\": true}'",
        attempts="2",
        payload="'{\"id\": 9007199254740993}'",
        last_error="e'first\\n  second'",
        run_at="now() - interval '2 hours'",
    )

    result = shell("jobs", "show", job)

    lines = result.out.splitlines()
    assert result.code == 0
    assert f"id          {job}" in lines
    assert "state       ready" in lines
    assert "queue       billing" in lines
    assert "attempts    2 of 25" in lines
    assert "locked by   -" in lines
    assert "flags       vip" in lines
    assert [line for line in lines if line.startswith("run at")][0].endswith(" UTC, 2h ago")
    assert '    "id": 9007199254740993' in lines
    assert lines[lines.index("last error") :] == ["last error", "  first", "    second"]


def test_a_job_in_json_has_its_payload_and_reasons(table, shell):
    job = table.add_job(payload="'{\"id\": 9007199254740993}'")

    found = parse_json(shell("jobs", "show", job, "--json"))

    assert (found["id"], found["task"], found["state"]) == (job, "task", "ready")
    assert found["payload"] == {"id": 9007199254740993}
    assert (found["locked_at"], found["flags"]) == (None, [])
    assert found["reasons"][0]["why"] == "no_worker"


@pytest.mark.parametrize("command", ["show", "why"])
def test_a_missing_job_is_reported(shell, command):
    result = shell("jobs", command, 7)

    assert (result.code, result.out) == (1, "")
    assert result.err == "graphile-worker: job 7 does not exist. It was completed or removed.\n"


def test_a_job_that_lost_its_task_is_shown(table, shell, sql):
    job = table.add_job()
    sql.run("update :schema._private_jobs set task_id = 0")

    assert shell("jobs", "show", job).code == 0
    assert "no live worker handles task None" in shell("jobs", "why", job).out


def test_a_payload_that_json_cannot_represent_is_shown_as_text(table, shell):
    job = table.add_job(payload="'{\"a\": 1e400}'")

    assert parse_json(shell("jobs", "show", job, "--json"))["payload"] == '{"a": 1e400}'


# why


def test_the_main_reason_comes_first(table, shell):
    queue = table.add_queue("q", locked_at="'9999-01-01'", locked_by="'paused:ana'")
    job = table.add_job(job_queue_id=queue)

    result = shell("jobs", "why", job)
    found = parse_json(shell("jobs", "why", job, "--json"))

    assert result.out == (
        f"job {job} (task) is waiting: its queue 'q' is paused by ana\n  also: no live worker "
        "handles task 'task' (no workers are running)\n"
    )
    assert [reason["why"] for reason in found["reasons"]] == ["queue_paused", "no_worker"]
    assert found["reasons"][0]["evidence"] == {
        "queue": "q",
        "paused_by": "ana",
        "reason": None,
        "since": None,
        "until": None,
    }


# Changes


@pytest.mark.feature("F227", "F231")
def test_jobs_are_retried_by_their_ids(table, shell, sql):
    ids = [table.add_job_in_state("failed") for _ in range(3)]

    result = shell("jobs", "retry", ids[0], ids[2])

    assert result == CommandResult(0, "retried 2 jobs\n", "")
    assert sql.run("select id from :schema._private_jobs where attempts = 0 order by id") == [
        (ids[0],),
        (ids[2],),
    ]


def test_jobs_are_retried_by_a_filter_and_others_stay(table, shell):
    table.add_job_in_state("failed", task="a")
    table.add_job_in_state("failed", task="b")
    table.add_job_in_state("running", task="a")

    result = shell("jobs", "retry", "--where", "task:a")

    assert result == CommandResult(0, "retried 1 job; skipped 1 that a worker holds\n", "")


def test_a_dry_run_shows_the_jobs_and_changes_nothing(table, shell):
    ids = [table.add_job_in_state(state) for state in ("failed", "running", "ready")]
    before = table.rows()

    result = shell("jobs", "retry", "--all", "--dry-run")
    found = parse_json(shell("jobs", "complete", "--all", "--dry-run", "--json"))

    lines = result.out.splitlines()
    assert lines[0] == "would retry 1 job (found: 1 running, 1 failed, 1 ready)"
    assert lines[2].split()[0] == str(ids[0])
    assert (found["total"], found["held"], found["dry_run"]) == (2, 1, True)
    assert [job["id"] for job in found["sample"]] == [ids[2], ids[0]]
    assert table.rows() == before


def test_a_result_in_json(table, shell):
    for state in ("failed", "failed", "running"):
        table.add_job_in_state(state)

    found = parse_json(shell("jobs", "retry", "--all", "--json"))

    assert found == {"action": "retry", "total": 2, "done": 2, "skipped_locked": 1, "gone": 0}


@pytest.mark.parametrize(
    "arguments",
    [
        ["retry"],
        ["complete", "--yes"],
        ["unlock"],
        # An unset variable of a shell leaves an empty filter.
        ["complete", "--where", "", "--yes"],
        ["fail", "--where", " ", "--yes"],
    ],
)
def test_a_change_without_chosen_jobs_is_rejected(table, shell, arguments):
    table.add_job_in_state("failed")

    result = shell("jobs", *arguments)

    assert (result.code, result.out) == (2, "")
    assert "no jobs chosen. Pass ids, --where or --all." in result.err


def test_a_job_named_by_id_and_not_changed_exits_with_1(table, shell):
    ready, failed = table.add_job_in_state("ready"), table.add_job_in_state("failed")

    assert shell("jobs", "retry", ready) == CommandResult(1, "nothing to retry: 1 ready\n", "")
    assert shell("jobs", "retry", "--where", "task:none") == CommandResult(
        0, "retried 0 jobs\n", ""
    )
    assert shell("jobs", "retry", failed, "--where", "task:none").code == 1


def test_missing_jobs_are_named(table, shell):
    failed = table.add_job_in_state("failed")
    gone = "graphile-worker: job 99999 does not exist. It was completed or removed.\n"
    both = "graphile-worker: jobs 99998, 99999 do not exist. They were completed or removed.\n"

    for command in (["retry"], ["complete", "--yes"], ["reschedule", "--priority", 3]):
        for flags in ([], ["--dry-run"], ["--json"]):
            assert shell("jobs", *command, 99999, *flags) == CommandResult(1, "", gone)
    assert shell("jobs", "retry", 99998, 99999) == CommandResult(1, "", both)
    assert shell("jobs", "retry", failed, 99999) == CommandResult(1, "retried 1 job\n", gone)


def test_a_missing_job_may_be_hidden_by_row_level_security(database, table, shell, sql):
    table.add_job_in_state("failed")
    sql.run("create role mistaken login")
    sql.run("grant usage on schema :schema to mistaken")
    sql.run("grant select on all tables in schema :schema to mistaken")
    try:
        result = shell("jobs", "retry", 99999, "-c", make_conninfo(database.dsn, user="mistaken"))
    finally:
        sql.run("drop owned by mistaken")
        sql.run("drop role mistaken")

    assert result.code == 1
    assert "row level security hides all jobs from this role" in result.err
    assert "does not exist" not in result.err


def test_a_limit_is_respected(table, shell):
    for _ in range(5):
        table.add_job_in_state("failed")

    assert shell("jobs", "retry", "--all", "--limit", 2).out == "retried 2 jobs\n"


@pytest.mark.parametrize(
    ("arguments", "question"),
    [
        (["complete"], "delete 2 jobs?"),
        (["fail"], "fail 1 job?"),
        (["unlock"], "unlock 1 job?"),
    ],
)
def test_an_irreversible_change_without_a_terminal_needs_yes(table, shell, arguments, question):
    for state in ("failed", "ready", "stale"):
        table.add_job_in_state(state)
    before = table.rows()

    result = shell("jobs", *arguments, "--all")

    assert (result.code, result.out) == (1, "")
    assert (
        result.err == f"graphile-worker: {question} Standard input is not a terminal. Add --yes.\n"
    )
    assert table.rows() == before


@pytest.mark.feature("F227", "F228")
def test_yes_confirms_a_change(table, shell):
    locked = table.add_job_in_state("running")
    for state in ("failed", "ready"):
        table.add_job_in_state(state)

    result = shell("jobs", "complete", "--all", "--yes")

    assert result.out == "deleted 2 jobs; skipped 1 that a worker holds\n"
    assert set(table.rows()) == {locked}


@pytest.mark.feature("F227", "F229")
def test_fail_stores_its_reason(table, shell, sql):
    job = table.add_job()

    result = shell("jobs", "fail", job, "--reason", "the customer left", "--yes")

    assert result == CommandResult(0, "failed 1 job\n", "")
    assert sql.value("select last_error from :schema._private_jobs") == "the customer left"


@pytest.mark.parametrize(
    ("when", "expected"),
    [("2030-01-01T00:00Z", "'2030-01-01Z'"), ("2030-01-01T02:00+02:00", "'2030-01-01Z'")],
)
def test_jobs_are_rescheduled(table, shell, sql, when, expected):
    job = table.add_job_in_state("failed")

    result = shell("jobs", "reschedule", job, "--run-at", when, "--priority", -3, "--attempts", 0)

    assert result == CommandResult(0, "rescheduled 1 job\n", "")
    changed = f"run_at = {expected}, priority = -3, attempts = 0"
    assert sql.value(f"select ({changed.replace(', ', ') and (')}) from :schema._private_jobs")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "nothing to change. Pass --run-at"),
        (["--run-at", "2030-01-01T00:00"], "has no time zone"),
        (["--run-at", "soon"], "expected a delay or a time"),
        (["--priority", "x"], "not a valid integer"),
    ],
)
def test_an_invalid_schedule_exits_with_2(shell, arguments, words):
    result = shell("jobs", "reschedule", "1", *arguments)

    assert result.code == 2
    assert words in result.err


@pytest.mark.parametrize("factor", ["nan", "inf", "-1", "long"])
def test_an_invalid_throttle_exits_with_2(shell, factor):
    result = shell("jobs", "retry", "--all", "--throttle", factor)

    assert result.code == 2
    assert "Invalid value for '--throttle'" in result.err


def test_stale_jobs_are_unlocked_and_running_ones_only_by_force(table, shell, sql):
    stale, running = table.add_job_in_state("stale"), table.add_job_in_state("running")

    first = shell("jobs", "unlock", stale, running, "--yes")
    second = shell("jobs", "unlock", running, "--force", "--yes")

    assert first == CommandResult(1, "unlocked 1 job; skipped 1 that a worker holds\n", "")
    assert second == CommandResult(0, "unlocked 1 job\n", "")
    assert sql.value("select count(locked_by) from :schema._private_jobs") == 0


# remove


def test_jobs_are_removed_by_their_keys(table, shell):
    table.add_job(key="'a*'")
    kept = table.add_job(key="'ab'")

    assert shell("jobs", "remove", "a*", "--yes") == CommandResult(0, "deleted 1 job\n", "")
    assert set(table.rows()) == {kept}
    assert shell("jobs", "remove", "nobody", "--yes") == CommandResult(1, "deleted 0 jobs\n", "")


def test_a_running_job_is_removed_only_with_running(table, shell, sql):
    table.add_job_in_state("running", key="'k'")

    rejected = shell("jobs", "remove", "k", "--running")
    preview = shell("jobs", "remove", "k", "--running", "--dry-run")
    first = shell("jobs", "remove", "k", "--yes")
    before = sql.run("select key, attempts, locked_by from :schema._private_jobs")
    second = shell("jobs", "remove", "k", "--yes", "--running")
    after = sql.run("select key, attempts, locked_by from :schema._private_jobs")

    assert (rejected.code, "delete 1 job?" in rejected.err) == (1, True)
    assert preview.out == (
        "would delete 0 jobs (found: 1 running)\n1 running job would finish and not run again\n"
    )
    assert first == CommandResult(1, "deleted 0 jobs; skipped 1 that a worker holds\n", "")
    assert before == [("k", 1, NODE)]
    assert second.code == 0
    assert second.out.endswith("1 running job will finish and not run again\n")
    assert after == [(None, 25, NODE)]


def test_removed_and_stopped_jobs_are_one_json_object(table, shell):
    table.add_job_in_state("running", key="'k'")
    table.add_job_in_state("ready", key="'l'")

    preview = parse_json(shell("jobs", "remove", "k", "l", "--running", "--dry-run", "--json"))
    found = parse_json(shell("jobs", "remove", "k", "l", "--running", "--yes", "--json"))

    assert (preview["total"], preview["held"], preview["stopped"]) == (1, 1, 1)
    assert found == {"action": "delete", "done": 1, "skipped_locked": 1, "gone": 0, "stopped": 1}


# workers


def test_workers_are_listed_with_their_locks(database, table, shell):
    register(database, runtime="python", host="web-1", pid=412, version="1.3.0", concurrency=10)
    table.add_job_in_state("running")

    lines = shell("workers", "list").out.splitlines()
    found = parse_json(shell("workers", "list", "--json"))["workers"]

    assert " ".join(lines[0].split()) == (
        "worker health heartbeat runtime where version slots jobs queues"
    )
    assert lines[1].split()[:2] == [NODE, "unknown"]
    assert lines[2].split()[:2] == [PYTHON_POOL, "alive"]
    assert lines[2].split()[-6:] == ["python", "web-1/412", "1.3.0", "10", "0", "0"]
    assert [(each["id"], each["health"], each["jobs"]) for each in found] == [
        (NODE, "unknown", 1),
        (PYTHON_POOL, "alive", 0),
    ]


def test_a_list_without_workers_prints_a_message(shell):
    assert shell("workers", "list") == CommandResult(0, "", "no workers found\n")


@pytest.mark.feature("F226")
def test_the_jobs_of_a_dead_worker_are_recovered(database, table, shell, sql):
    register(database)
    sql.run("update :ext_schema.pools set lease = '1 s', seen_at = now() - interval '1 h'")
    queue = table.add_queue("q", locked_at="now()", locked_by=f"'{PYTHON_POOL}'")
    job = table.add_job(locked_at="now()", locked_by=f"'{PYTHON_POOL}'", job_queue_id=queue)
    other = table.add_job_in_state("running")

    dry = shell("workers", "recover", "--all-dead", "--dry-run")
    rejected = shell("workers", "recover", "--all-dead")
    done = shell("workers", "recover", "--all-dead", "--yes")

    assert dry == CommandResult(0, "would recover 1 job of 1 worker\n", "")
    assert rejected.code == 1
    assert "recover 1 job of 1 worker? Standard input is not a terminal" in rejected.err
    assert done == CommandResult(0, "recovered 1 job of 1 worker\n", "")
    holders = dict(sql.run("select id, locked_by from :schema._private_jobs"))
    assert holders == {job: None, other: NODE}
    assert queue_lock(sql, "q") == (None, True)


def test_an_unregistered_worker_is_recovered_by_its_id(table, shell):
    job = table.add_job_in_state("running")

    found = parse_json(shell("workers", "recover", NODE, "--yes", "--json"))

    assert found == {"workers": [NODE], "jobs": [job]}


def test_a_worker_that_is_alive_is_recovered_only_with_force(database, table, shell):
    register(database)
    table.add_job(locked_at="now()", locked_by=f"'{PYTHON_POOL}'")

    rejected = shell("workers", "recover", PYTHON_POOL, "--yes")
    forced = shell("workers", "recover", PYTHON_POOL, "--yes", "--force")

    assert (rejected.code, rejected.out) == (1, "")
    assert f"worker {PYTHON_POOL} is alive, last heartbeat" in rejected.err
    assert forced.out == "recovered 1 job of 1 worker\n"


def test_an_unknown_worker_is_an_error(table, shell):
    job = table.add_job_in_state("running")
    before = table.rows()

    for flags in ([], ["--yes"], ["--yes", "--force"], ["--dry-run"], ["--yes", "--json"]):
        result = shell("workers", "recover", NODE, "nope", *flags)

        assert (result.code, result.out) == (1, "")
        assert "unknown worker nope" in result.err
        assert "`graphile-worker workers list`" in result.err
    assert table.rows() == before
    assert parse_json(shell("workers", "recover", NODE, "--yes", "--json"))["jobs"] == [job]


def test_recover_needs_a_worker(shell):
    assert shell("workers", "recover").code == 2
    assert shell("workers", "recover", "--all-dead") == CommandResult(
        0, "recovered 0 jobs of 0 workers\n", ""
    )


# add


def test_a_job_is_added(shell, sql):
    result = shell("add", "send_email", '{"to": "ada@example.com", "n": 9007199254740993}')

    ((job, payload),) = sql.run("select id, payload::text from :schema._private_jobs")
    assert result == CommandResult(0, f"added job {job} (send_email)\n", "")
    assert json.loads(payload) == {"to": "ada@example.com", "n": 9007199254740993}


def test_a_job_is_added_with_every_option(shell, sql):
    result = shell(
        "add", "charge", "--queue-name", "billing", "--run-at", "10m", "--max-attempts", 3,
        "--priority", -1, "--job-key", "k", "--job-key-mode", "preserve_run_at", "--flag", "a",
        "--flag", "b", "--json",
    )  # fmt: skip

    found = parse_json(result)
    ((job, queue, most, priority, key, flags, payload, soon),) = sql.run(
        "select id, queue_name, max_attempts, priority, key, flags, payload::text, "
        "run_at - now() between interval '9 minutes' and interval '10 minutes' "
        "from :schema._private_jobs jobs join :schema._private_job_queues queues "
        "on queues.id = jobs.job_queue_id".replace("id, queue_name", "jobs.id, queue_name")
    )
    assert (found["id"], found["task"]) == (job, "charge")
    assert (queue, most, priority, key, payload, soon) == ("billing", 3, -1, "k", "{}", True)
    assert flags == {"a": True, "b": True}


@pytest.mark.parametrize("payload", ["{", "nothing", "NaN", "[" * 9999])
def test_a_payload_that_is_not_json_exits_with_2(shell, sql, payload):
    result = shell("add", "task", payload)

    assert result.code == 2
    assert "the payload is not JSON" in result.err
    assert sql.value("select count(*) from :schema._private_jobs") == 0


def test_a_job_that_cannot_be_added_exits_with_1(shell):
    result = shell("add", "task", "--priority", "99999")

    assert (result.code, result.out) == (1, "")
    assert result.err == ("graphile-worker: priority=99999: must be from -32768 to 32767 [22003]\n")
