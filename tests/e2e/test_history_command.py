"""`jobs history`, `jobs list --ended`, `jobs show`, `top` and `history` beside a real worker."""

import json
import re
from typing import Any

import pytest

from graphile_worker import sync
from tests.conftest import TestDatabase
from tests.support.hostile import TEXT, unsafe
from tests.support.processes import Programs

APP = """
    from graphile_worker import App, Retention

    app = App(retention=Retention(results=True, attempts=True))


    @app.task(retention=Retention(results=True, attempts=True, payloads=True))
    async def resize(width: int) -> dict[str, int]:
        return {"width": width}


    @app.task(max_attempts=1)
    async def fails(text: str) -> None:
        raise ValueError(text)


    @app.task(max_attempts=3)
    async def flaky() -> None:
        raise TimeoutError("upstream took 30 s")
"""


@pytest.fixture
def run(programs: Programs, database: TestDatabase) -> Any:
    """Run the jobs that are due with the app above."""
    programs.write("shop.py", APP)

    def run() -> None:
        done = programs.run_to_end("--once", "--app", "shop:app")
        assert done.code == 0, done.err

    return run


def add(database: TestDatabase, identifier: str, **payload: Any) -> int:
    with sync.Client(database.dsn, schema=database.schema) as client:
        return client.add_job(identifier, payload, max_attempts=1 if "text" in payload else 3).id


def read_json(programs: Programs, *arguments: object) -> Any:
    done = programs.run_to_end(*map(str, arguments), "--json")
    assert (done.code, done.err) == (0, ""), done.err
    return json.loads(done.out)


@pytest.mark.every_version
def test_an_ended_job_is_listed_and_shown_with_its_history(database, programs, run):
    job_id = add(database, "resize", width=3)
    run()

    listed = programs.run_to_end("jobs", "list", "--ended", "task:resize", "finished:<1h")
    history = programs.run_to_end("jobs", "history", str(job_id))
    shown = programs.run_to_end("jobs", "show", str(job_id))

    head, line = listed.out.splitlines()
    assert head.split()[:3] == ["id", "task", "state"]
    assert line.split()[:3] == [str(job_id), "resize", "succeeded"]
    events = history.out.partition("\n\n")[0]
    assert re.findall(r"UTC  (added|attempt 1|succeeded)\b", events) == [
        "added",
        "attempt 1",
        "succeeded",
    ]
    values = [f'{name}\n  {{\n    "width": 3\n  }}\n' for name in ("payload", "result")]
    assert history.out.endswith("".join(values))
    assert "state        succeeded\n" in shown.out
    assert re.search(r"^history      1  .* pypool-[0-9a-f]{18}$", shown.out, re.MULTILINE)
    assert [done.code for done in (listed, history, shown)] == [0, 0, 0]


def test_history_in_json_has_attempts_outcomes_and_results(database, programs, run):
    job_id = add(database, "resize", width=4)
    failing = add(database, "flaky")
    run()

    history = read_json(programs, "jobs", "history", job_id)
    retried = read_json(programs, "jobs", "history", failing)
    page = read_json(programs, "jobs", "list", "--ended")
    shown = read_json(programs, "jobs", "show", job_id)
    waiting = read_json(programs, "jobs", "show", failing)

    assert (history["state"], history["task"]) == ("succeeded", "resize")
    assert [each["result"] for each in history["outcomes"]] == [{"width": 4}]
    assert [each["payload"] for each in history["outcomes"]] == [{"width": 4}]
    assert not any("payload" in each for each in retried["outcomes"])
    assert [each["number"] for each in history["attempts"]] == [1]
    assert (retried["state"], retried["outcomes"]) == ("retrying", [])
    assert "upstream took 30 s" in retried["attempts"][0]["error"]
    assert [(each["id"], each["has_result"]) for each in page["jobs"]] == [(job_id, True)]
    assert page["before"] is None
    assert (shown["state"], shown["result"], shown["id"]) == ("succeeded", {"width": 4}, job_id)
    assert [each["number"] for each in waiting["history"]] == [1]


def test_pages_of_ended_jobs_continue_where_the_last_one_ended(database, programs, run):
    ids = {add(database, "resize", width=n) for n in range(3)}
    run()

    first = read_json(programs, "jobs", "list", "--ended", "--limit", 2)
    second = read_json(programs, "jobs", "list", "--ended", "--before", first["before"])
    printed = programs.run_to_end("jobs", "list", "--ended", "--limit", "2")

    assert [len(page["jobs"]) for page in (first, second)] == [2, 1]
    assert {job["id"] for page in (first, second) for job in page["jobs"]} == ids
    assert printed.err == f"more jobs: add --before {first['before']}\n"


def test_errors_and_results_cannot_control_the_terminal(database, programs, run):
    text = TEXT.replace("\x00", "")
    job_id = add(database, "fails", text=text)
    run()

    outputs = [
        programs.run_to_end(*arguments).out
        for arguments in (
            ("jobs", "history", str(job_id)),
            ("jobs", "show", str(job_id)),
            ("jobs", "list", "--ended"),
            ("top", "--once"),
        )
    ]

    assert [unsafe(output) for output in outputs] == [[]] * 4
    assert all("ValueError" in output for output in outputs)


def test_history_set_and_show_print_how_long_outcomes_are_kept(database, programs, run):
    add(database, "resize", width=1)
    run()

    changed = programs.run_to_end("history", "set", "--keep", "14d", "--max-rows", "1000")
    shown = programs.run_to_end("history", "show")
    limited = read_json(programs, "history", "show")
    cleared = read_json(programs, "history", "set", "--no-max-rows")

    assert changed.out == "outcomes are kept for 14d, at most about 1,000\n"
    assert "keep      14d\nmax rows  1,000\noutcomes  about 1\n" in shown.out
    assert "\nrotation  up to date\n" in shown.out
    assert re.search(r"\n   0  .* UTC +1 +\S+ kB  written to\n", shown.out)
    assert (limited["keep"], limited["max_rows"]) == (14 * 86_400, 1000)
    assert [slot["rows"] for slot in limited["slots"]] == [1] + [0] * 8
    assert cleared == {"keep": 14 * 86_400, "max_rows": None}


def test_prune_prints_what_it_removed(database, programs, run, sql):
    add(database, "resize", width=1)
    run()
    sql.run("update :ext_schema.outcomes set expires_at = now()")
    sql.run("update :ext_schema.attempts set expires_at = now()")

    expired = programs.run_to_end("history", "prune")
    nothing = programs.run_to_end("history", "prune")
    sql.run(
        "update :ext_schema.history set slot = 1, started_at = array[now() - interval '9 days', "
        "now() - interval '8 days'] || array_fill('-infinity'::timestamptz, array[7])"
    )
    emptied = programs.run_to_end("history", "prune")

    assert expired.out == "deleted 2 outcomes and attempts that their tasks no longer keep\n"
    assert nothing.out == "nothing to delete\n"
    assert re.fullmatch(r"emptied 1 slot: about \d+ outcomes, \d+ kB\n", emptied.out)


def test_top_shows_ended_jobs_and_progress(database, programs, run, sql):
    ended = add(database, "resize", width=1)
    run()
    running = add(database, "resize", width=2)
    sql.run(
        "update :schema._private_jobs set locked_at = now(), locked_by = 'x', attempts = 1 "
        "where id = $1",
        running,
    )
    sql.run(
        "insert into :ext_schema.progress (job_id, pool_id, fraction, message, updated_at) "
        "values ($1, 'x', 0.25, 'page 1 of 4', now())",
        running,
    )

    screen = programs.run_to_end("top", "--once", "--interval", "500ms").out
    values = read_json(programs, "top", "--once", "--interval", "500ms")
    shown = programs.run_to_end("jobs", "show", str(running)).out

    assert re.search(rf"^ *{running}  resize .* x +25 %, page 1 of 4$", screen, re.MULTILINE)
    assert re.search(rf"^ *{ended}  resize +succeeded +", screen, re.MULTILINE)
    assert [job["id"] for job in values["ended"]] == [ended]
    assert values["progress"][str(running)]["fraction"] == 0.25
    assert re.search(r"^progress +25 %, page 1 of 4, [\d.]+m?s ago$", shown, re.MULTILINE)
