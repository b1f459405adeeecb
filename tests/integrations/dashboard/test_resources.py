"""The resources of the dashboard's API: their answers, their rules, and hostile requests."""

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from graphile_worker import App, ConcurrencyLimit, RateLimit, Retention, sync
from graphile_worker._sql.queries.limits import (
    LimitAccess,
    create_limit_rows,
    register_limits,
    rent_slots,
)
from graphile_worker._sql.queries.workers import register_pool
from graphile_worker._sql.query import Query
from graphile_worker.contrib.dashboard import User, _poller
from graphile_worker.contrib.dashboard._api import ApiRoute, Problem
from graphile_worker.contrib.dashboard._bulk_runs import get_bulk_runs
from graphile_worker.contrib.dashboard._resources import (
    ROUTES,
    completions,
    diagnosis,
    history,
    limits,
    overview,
    session,
)
from graphile_worker.contrib.dashboard._view import CHANGES
from graphile_worker.limits import Limit
from graphile_worker.ops.history import HistoryMissing
from tests.conftest import TestDatabase
from tests.support import tiers
from tests.support.cluster import Cluster
from tests.support.dashboard import Board, Caller, open_dashboard
from tests.support.database_pool import DatabasePool
from tests.support.job_table import NODE, JobTable
from tests.support.pools import open_session
from tests.support.sql import Sql

OWN_ROUTES = [each for each in ROUTES if each not in (*session.ROUTES, *overview.ROUTES)]

DEAD = "pypool-dddddddddddddddddd"
ALIVE = "pypool-aaaaaaaaaaaaaaaaaa"
TRACEBACK = (
    'Traceback (most recent call last):\n  File "/srv/app/mail.py", line 7, in send\n    x()\n'
)
WAIT_SECONDS = 30.0

app = App(retention=Retention(results=True, attempts=True, payloads=True))


@app.cron("*/5 * * * *", id="every five", payload={"width": 1})
@app.task
def resize(width: int, name: str = "x") -> int:
    """Return the width."""
    return width


@dataclass(frozen=True)
class Desk:
    """A dashboard of a queue that the tests of this module share, and ways to change the queue."""

    board: Board
    admin: Caller
    table: JobTable
    sql: Sql
    database: TestDatabase

    def wait_for(self, is_true: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + WAIT_SECONDS
        while not (found := is_true()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return found

    def audit(self) -> list[tuple[Any, ...]]:
        return self.sql.run(
            "select actor, action, filter, job_ids, note from :ext_schema.audit order by id"
        )

    def run_bulk(self, **body: Any) -> dict[str, Any]:
        """Preview a change, make it, and return the run at its end."""
        preview = self.admin.post("bulk/preview", body)
        run = self.admin.post("bulk", {"token": preview["token"]})

        def find_end() -> Any:
            found = self.admin.get(f"bulk/{run['id']}")
            return found if found["state"] != "running" else None

        ended: dict[str, Any] = self.wait_for(find_end)
        return ended


@pytest.fixture(scope="module")
def shared(databases: DatabasePool, cluster: Cluster, schema: str, template: str) -> Iterator[Desk]:
    name = databases.acquire(template)
    database = TestDatabase(name, cluster, schema)
    with (
        closing(Sql(database.dsn, schema)) as sql,
        closing(JobTable(database, sql)) as table,
        open_dashboard(database, app=app) as board,
    ):
        yield Desk(board, board.sign_in(), table, sql, database)
    databases.release(name)


@pytest.fixture
def desk(shared: Desk) -> Desk:
    """The shared dashboard on an empty queue."""
    for name in (
        "_private_jobs",
        "_private_job_queues",
        "_private_tasks",
        "_private_known_crontabs",
    ):
        shared.sql.run(f"delete from :schema.{name}")
    for name in ("pools", "audit", "outcomes", "attempts", "progress", "pauses", "limits"):
        shared.sql.run(f"delete from :ext_schema.{name}")
    for cache in (*history._CACHES.values(), limits._LIMITS, diagnosis._REPORTS):
        cache.clear(shared.board.service)
    return shared


def add_pool(desk: Desk, id: str, *, is_alive: bool = True, **details: Any) -> None:
    with open_session(desk.database) as connection:
        connection.run(register_pool(id, timedelta(hours=1), {"runtime": "python", **details}))
    if not is_alive:
        desk.sql.run(
            "update :ext_schema.pools set seen_at = now() - interval '2 hours' where id = $1", id
        )


RATE = RateLimit(100, per=timedelta(minutes=1), burst=20, name="stripe")


def add_limit(desk: Desk, limit: Limit) -> None:
    """Add a limit as a worker does when it starts."""
    with open_session(desk.database) as connection:
        connection.run(register_limits([limit]))
        connection.run(create_limit_rows([limit.name or ""]))


INSERT_OUTCOME = """
insert into :ext_schema.outcomes (
  slot, job_id, task_identifier, succeeded, attempts, created_at, run_at, started_at, finished_at,
  pool_id, has_result, result, payload, error
)
select
  slot, $1, 'resize', $2, 1, end_at - interval '9 s', end_at - interval '3 s',
  end_at - interval '2 s', end_at, 'pypool-1', $2,
  '{"secret": 12345678901234567890, "n": 1.10}', '{"width": 1}',
  case when not $2 then 'ValueError: no' end
from :ext_schema.history, (select now() - $3::float8 * interval '1 second' as end_at) as times
"""
INSERT_ATTEMPT = """
insert into :ext_schema.attempts (
  slot, job_id, attempt, started_at, duration, pool_id, error, error_class
)
select slot, $1, 1, now(), 1.5, 'pypool-1', 'ValueError: x', 'builtins.ValueError'
from :ext_schema.history
"""


def add_outcome(
    desk: Desk, job_id: int, *, succeeded: bool = True, seconds_ago: float = 60.0
) -> None:
    desk.sql.run(INSERT_OUTCOME, job_id, succeeded, seconds_ago)


def fill(desk: Desk) -> dict[str, int]:
    """Add one of everything, so that no list of an answer is empty."""
    ids = {state: desk.table.add_job_in_state(state) for state in ("running", "ready", "scheduled")}
    ids["failed"] = desk.table.add_job(
        "mail", attempts="25", last_error=f"'ValueError: job 7\n\n' || $q${TRACEBACK}$q$"
    )
    ids["waiting"] = desk.table.add_job_in_state("waiting")
    desk.sql.run(INSERT_ATTEMPT, ids["failed"])
    desk.sql.run(
        "insert into :ext_schema.progress values ($1, $2, 0.4, 'page 4', now())",
        ids["running"],
        NODE,
    )
    add_outcome(desk, ids["failed"])
    add_outcome(desk, 4_000_000)
    add_pool(desk, ALIVE, tasks=["resize"])
    desk.admin.post("queues/paused%2F100%25/pause", {"reason": "because"})
    desk.admin.post("tasks/mail/pause", {"seconds": 60})
    add_limit(desk, RATE)
    return ids


# Answers


def compare_keys(example: Any, answer: Any, path: str) -> list[str]:
    """List the places where an answer has other keys than its example."""
    if isinstance(example, Mapping) and isinstance(answer, Mapping):
        if not example or path.endswith((".evidence", ".by_state", ".facts")):
            return []
        if example.keys() != answer.keys():
            return [f"{path}: {sorted(example.keys() ^ answer.keys())}"]
        return [
            each
            for key in example
            for each in compare_keys(example[key], answer[key], f"{path}.{key}")
        ]
    if isinstance(example, list) and isinstance(answer, list) and example:
        if not answer and isinstance(example[0], Mapping):
            return [f"{path} is empty"]
        return [each for one in answer for each in compare_keys(example[0], one, f"{path}[]")]
    return []


def test_answers_have_the_keys_of_their_examples(desk):
    ids = fill(desk)
    fingerprint = desk.wait_for(lambda: desk.admin.get("errors")["groups"])[0]["fingerprint"]
    desk.wait_for(lambda: desk.admin.get("workers")["workers"])
    desk.wait_for(lambda: len(desk.admin.get("tasks")["tasks"]) > 2)
    # A change after which the job has still failed.
    preview = {"action": "reschedule", "q": "state:failed", "parameters": {"priority": 1}}
    token = desk.admin.post("bulk/preview", preview)["token"]
    run = desk.admin.post("bulk", {"token": token, "limit": 1})["id"]
    bodies: dict[str, Any] = {
        "POST /jobs": {"task": "resize", "payload": '{"width": 2}'},
        "POST /jobs/check": {"task": "resize", "payload": '{"width": "2", "widthh": 3}'},
        "POST /bulk/preview": preview | {"q": ""},
        "POST /bulk": {"token": desk.admin.post("bulk/preview", preview)["token"]},
        "POST /workers/recover": {"ids": [NODE]},
        "POST /limits/{name}/set": {"value": "50/1m"},
    }
    names = {
        "/jobs/{id}": str(ids["failed"]),
        "/jobs/{id}/payload": str(ids["failed"]),
        "/jobs/{id}/result": "4000000",
        "/jobs/{id}/payload/reveal": str(ids["failed"]),
        "/jobs/{id}/result/reveal": "4000000",
        "/errors/{fingerprint}": fingerprint,
        "/bulk/{id}": run,
        "/queues/{name}/pause": "q",
        "/queues/{name}/resume": "q",
        "/tasks/{name}/pause": "resize",
        "/tasks/{name}/resume": "resize",
        "/cron/{identifier}/run": quote("every five"),
        "/tasks/{name}": "resize",
        "/limits/{name}/set": "stripe",
        "/limits/{name}/reset": "stripe",
    }

    for route in OWN_ROUTES:
        path = route.path
        for name in ("id", "fingerprint", "name", "identifier"):
            path = path.replace(f"{{{name}}}", names.get(route.path, ""))
        response = desk.admin.request(
            route.method, path.removeprefix("/"), bodies.get(f"{route.method} {route.path}")
        )
        assert response.status_code == route.status, f"{route.path}: {response.text}"
        assert compare_keys(route.answer, response.json(), route.path) == []
        assert route.answer


def test_no_two_routes_are_the_same():
    keys = [(route.method, route.path) for route in ROUTES]

    assert len(keys) == len(set(keys))


# Jobs


def test_jobs_are_found_in_the_language_of_jobs_list_page_by_page(desk):
    ids = [desk.table.add_job("mail", priority=str(number)) for number in range(5)]
    desk.table.add_job("other")

    first = desk.admin.get("jobs", q="task:ma* priority:>=1", limit=3)
    second = desk.admin.get("jobs", q="task:ma* priority:>=1", limit=3, before=first["next"])

    assert [job["id"] for job in first["jobs"]] == [str(each) for each in ids[:1:-1]]
    assert [job["id"] for job in second["jobs"]] == [str(ids[1])]
    assert (second["next"], first["newest"]) == (None, 200_000)
    assert first["jobs"][0]["state"] == "ready"


def test_a_search_by_ids_or_keys_reads_the_whole_table(desk):
    job = desk.table.add_job(key="'a'")

    assert desk.admin.get("jobs", q=f"id:{job}")["newest"] is None
    assert desk.admin.get("jobs", q="key:a")["newest"] is None
    assert desk.admin.get("jobs", q="key:a*")["newest"] == 200_000
    assert desk.admin.get("jobs", q="-key:a")["newest"] == 200_000
    assert desk.admin.get("jobs", newest="all")["newest"] is None


def wait_for_task(desk: Desk, name: str) -> None:
    """Wait until the last snapshot has the jobs of a task."""

    def is_counted() -> bool:
        tasks = {each["identifier"]: each for each in desk.admin.get("tasks")["tasks"]}
        return name in tasks and any(tasks[name]["counts"].values())

    desk.wait_for(is_counted)


def test_filters_are_completed_by_fields_names_and_values():
    names = {"task": ["mail", "send email"], "queue": ["mail"], "worker": []}
    cases = {
        "tas": "task:",
        "pay": "payload.",
        "state:failed -task:mai": "state:failed -task:mail ",
        "state:rea": "state:ready ",
        "state:failed,rea": "state:failed,ready ",
        "SEND": 'task:"send email" ',
        'task:"send e': 'task:"send email" ',
        "queue:ma": "queue:mail ",
    }
    for text, completed in cases.items():
        assert next(completions.complete_filter(text, names))["text"] == completed
    assert len(list(completions.complete_filter("", names))) > 10
    for text in ("m", "nothing:", 'state:ready"', "task:mail ", "task:mail"):
        options = completions.complete_filter(text, names)
        assert "mail" not in [each["label"] for each in options]


def test_places_are_jobs_tasks_and_queues_by_name(desk):
    desk.table.add_job("a/b")
    wait_for_task(desk, "a/b")

    def find(text: str) -> list[str]:
        return [each["text"] for each in desk.admin.get("places", q=text)["options"]]

    assert "tasks/a%2Fb" in find("")
    assert find("Job 17")[0] == find("17")[0] == find("#17")[0] == "jobs/17"
    assert find("A/") == ["tasks/a%2Fb", "queues?q=A%2F", "jobs?q=A%2F"]


def test_a_mistake_in_a_filter_has_its_position(desk):
    for text, position, length in [
        ("task:a state:nope", 13, 4),
        ("tsak:a", 0, 6),
        ('task:"a', 5, 2),
        ("state:", 6, 0),
    ]:
        problem = desk.admin.request("GET", "jobs", params={"q": text}).json()
        assert (problem["code"], problem["status"]) == ("bad_filter", 400)
        assert (problem["position"], problem["length"]) == (position, length), text


def test_jobs_are_counted_by_state(desk):
    for state in ("ready", "ready", "failed"):
        desk.table.add_job_in_state(state)

    counts = desk.admin.get("jobs/count")

    assert (counts["by_state"], counts["total"]) == ({"failed": 1, "ready": 2}, 3)
    assert counts["is_capped"] is False


def test_a_job_that_ended_is_shown_from_its_outcome_and_one_without_any_is_not_found(desk):
    add_outcome(desk, 17)

    found = desk.admin.get("jobs/17")

    assert (found["job"], found["state"]) == (None, "succeeded")
    assert found["outcomes"][0]["worker"] == "pypool-1"
    assert found["actions"]["retry"] == "The job has ended."
    assert found["ending"] == "Succeeded after 2s, in attempt 1 on pypool-1."
    assert [event["text"] for event in found["timeline"]] == ["Created", "Succeeded"]
    assert desk.admin.request("GET", "jobs/18").status_code == 404


def test_a_job_states_why_it_does_not_run_and_which_actions_apply(desk):
    job = desk.table.add_job_in_state("running")

    found = desk.admin.get(f"jobs/{job}")

    assert found["reasons"][0]["code"] == "running"
    assert found["why"] == "What it is doing"
    assert found["actions"]["delete"] == "A worker holds it. Wait until it ends."
    assert found["actions"]["unlock"] == "Its worker is not known to be dead."


def test_the_timeline_of_a_job_has_what_happened_and_what_comes_next(desk):
    cases = {
        "running": [f"Attempt 1 of 25 started on {NODE}"],
        "failed": ["Failed permanently after 25 attempts"],
        "retrying": ["Attempt 3 of 25 is due"],
        "ready": ["Due, waiting for a worker"],
        "waiting": ["Due"],
        "scheduled": ["Due"],
    }
    for state, texts in cases.items():
        job = desk.table.add_job_in_state(state)
        timeline = desk.admin.get(f"jobs/{job}")["timeline"]
        assert sorted(event["text"] for event in timeline) == sorted(["Created", *texts])
        [last] = [event for event in timeline if event["text"] != "Created"]
        assert (last["state"], last["is_estimate"]) == (state, state == "failed")
        assert last["is_next"] == (state in ("retrying", "ready", "waiting", "scheduled"))


# Payloads


def test_payloads_are_masked_and_numbers_keep_their_digits(desk):
    job = desk.table.add_job(
        payload="""'{"n": 12345678901234567.10, "u": {"API_key": [1, {"a": 2}], "token": "x"}}'"""
    )

    shown = desk.admin.get(f"jobs/{job}/payload")

    assert shown["text"] == '{"n": 12345678901234567.10, "u": {"API_key": "•••", "token": "•••"}}'
    assert (shown["is_redacted"], shown["is_truncated"]) == (True, False)


def test_masked_values_are_shown_with_an_entry_in_the_audit(desk):
    job = desk.table.add_job(payload="""'{"token": "x"}'""")

    assert desk.admin.get(f"jobs/{job}/payload", reveal=1)["is_redacted"]
    assert desk.audit() == []
    shown = desk.admin.post(f"jobs/{job}/payload/reveal")

    assert (shown["text"], shown["is_redacted"]) == ('{"token": "x"}', False)
    ((actor, action, _, ids, note),) = desk.audit()
    assert (action, ids, note) == ("payload reveal", [job], "payload")
    assert actor
    add_outcome(desk, 17)
    assert "12345678901234567890" in desk.admin.post("jobs/17/result/reveal")["text"]
    assert desk.audit()[1][3:] == ([17], "result")


def test_a_user_who_may_only_view_payloads_reveals_them(desk):
    job = desk.table.add_job(payload="""'{"token": "x"}'""")
    users = [User("ann", permissions=("view", "view_payload")), User("bob", permissions=("view",))]
    for user, status in zip(users, (200, 403), strict=True):
        with open_dashboard(
            desk.database, login={"authenticate": lambda request, user=user: user}
        ) as board:
            caller = board.call()
            caller.csrf = caller.get("session")["csrf"]
            answer = caller.request("POST", f"jobs/{job}/payload/reveal")
            assert answer.status_code == status, user
            body = {"action": "retry", "ids": [job]}
            assert caller.request("POST", "bulk/preview", body).status_code == 403


def test_a_long_payload_is_cut_off(desk):
    job = desk.table.add_job(payload="json_build_object('a', repeat('x', 300000), 'token', 'y')")

    shown = desk.admin.get(f"jobs/{job}/payload")

    assert (len(shown["text"]), shown["is_truncated"]) == (256 * 1024, True)
    assert shown["bytes"] > 300_000


def test_a_result_is_masked(desk):
    add_outcome(desk, 17)

    assert desk.admin.get("jobs/17/result")["text"] == '{"secret": "•••", "n": 1.10}'
    assert desk.admin.get("jobs/17/payload")["text"] == '{"width": 1}'


def test_a_search_for_masked_values_is_rejected(desk):
    for text in ("payload.token:x", "payload.user.password:x"):
        assert desk.admin.request("GET", "jobs", params={"q": text}).status_code == 403
        body = {"action": "retry", "q": text}
        assert desk.admin.request("POST", "bulk/preview", body).status_code == 403
    assert desk.admin.get("jobs", q="payload.user.id:42")["jobs"] == []


def test_a_role_that_only_views_sees_and_searches_no_payloads(desk):
    job = desk.table.add_job()
    with open_dashboard(desk.database, role="read-only") as board:
        viewer = board.sign_in()
        assert viewer.get(f"jobs/{job}")["job"]["payload_bytes"] == 2
        assert viewer.request("GET", f"jobs/{job}/payload").status_code == 403
        assert viewer.request("GET", "jobs", params={"q": "payload.a:1"}).status_code == 403


def test_a_role_that_only_views_does_not_search_errors(desk):
    job = desk.table.add_job("mail", attempts="25", last_error="'login failed: token=abc123'")
    for word in ("abc123", "error:abc123"):
        assert [each["id"] for each in desk.admin.get("jobs", q=word)["jobs"]] == [str(job)]
    with open_dashboard(desk.database, role="read-only") as board:
        viewer = board.sign_in()
        for path in ("jobs", "jobs/count", "history/outcomes"):
            for text in ("error:abc*", "-error:abc*"):
                answer = viewer.request("GET", path, params={"q": text})
                assert (answer.status_code, answer.json()["permission"]) == (403, "view_payload")
        assert viewer.get("jobs", q="abc123")["jobs"] == []
        assert len(viewer.get("jobs", q="-abc123")["jobs"]) == 1
        assert len(viewer.get("jobs", q="mai")["jobs"]) == 1
        add_outcome(desk, 17, succeeded=False)
        assert len(desk.admin.get("history/outcomes", q="ValueError")["outcomes"]) == 1
        assert viewer.get("history/outcomes", q="ValueError")["outcomes"] == []


def test_secrets_in_errors_are_masked(desk):
    job = desk.table.add_job(
        "mail", attempts="25", last_error="""'Error: {"token": "abc", "n": 1} ?api_key=abc&x=1'"""
    )
    masked = 'Error: {"token": •••, "n": 1} ?api_key=•••&x=1'

    assert desk.admin.get("jobs", q=f"id:{job}")["jobs"][0]["error"] == masked
    found = desk.admin.get(f"jobs/{job}")
    assert found["job"]["last_error"] == masked
    assert "abc" not in json.dumps(found)

    def find_alert() -> Any:
        # It names the newest job that fails.
        alerts = json.dumps(desk.admin.get("overview")["alerts"], ensure_ascii=False)
        return alerts if f"job {job}:" in alerts else None

    alerts = desk.wait_for(find_alert)
    assert "•••" in alerts
    assert "abc" not in alerts

    running = desk.table.add_job_in_state("running")
    desk.sql.run(
        "insert into :ext_schema.progress values ($1, $2, 0.4, 'at ?api_key=abc&x=1', now())",
        running,
        NODE,
    )
    assert desk.admin.get(f"jobs/{running}")["progress"]["message"] == "at ?api_key=•••&x=1"


# Enqueue


def test_a_job_is_added_with_its_payload_as_it_was_written(desk):
    payload = '{"width": 12345678901234567890, "_f": 1.10}'

    added = desk.admin.post(
        "jobs",
        {"task": "resize", "payload": payload, "run_at": "10m", "job_key": "k", "flags": ["a"]},
    )
    again = desk.admin.post("jobs", {"task": "resize", "payload": payload, "job_key": "k"})

    ((stored, key),) = desk.sql.run("select payload::text, key from :schema._private_jobs")
    assert (stored, key, added["is_new"]) == (payload, "k", True)
    assert again == {"id": added["id"], "is_new": False, "is_duplicate": False}
    assert [entry[1:4] for entry in desk.audit()][0] == (
        "jobs add",
        "task:resize",
        [int(added["id"])],
    )


def test_a_unique_job_is_added_once_per_window(desk):
    body = {"task": "resize", "payload": '{"width": 1}', "unique": "u", "unique_for": "1d"}

    added, again = desk.admin.post("jobs", body), desk.admin.post("jobs", body)

    assert (added["is_new"], added["is_duplicate"]) == (True, False)
    assert again == {"id": added["id"], "is_new": False, "is_duplicate": True}
    for wrong in ({"unique_for": "soon"}, {"unique_for": None}, {"job_key": "k"}):
        response = desk.admin.request("POST", "jobs", {**body, **wrong})
        assert response.status_code == 400, wrong


def test_a_payload_that_does_not_fit_the_task_is_rejected(desk):
    for payload, path in (
        ('{"width": "x"}', "width"),
        ("{}", "width"),
        ("{", ""),
        ("NaN", ""),
        # UTF-8 has no character for this key.
        (r'{"width": 1, "\ud83d": 1}', ""),
    ):
        body = {"task": "resize", "payload": payload}
        response = desk.admin.request("POST", "jobs", body)
        assert (response.status_code, response.json()["code"]) == (422, "bad_payload"), payload
        assert response.json()["problems"][0]["path"] == path
        assert desk.admin.post("jobs/check", body)["problems"][0]["path"] == path
    unknown = desk.admin.post("jobs/check", {"task": "resiez", "payload": "[1]"})
    assert (unknown["problems"], unknown["task_is_known"]) == ([], False)
    assert unknown["known_tasks_nearest"] == ["resize"]


# Errors


def test_errors_are_grouped_and_a_group_is_retried(desk):
    error = f"'ValueError: job ' || %s || ' failed' || $q$\n\n{TRACEBACK}$q$"
    ids = [
        desk.table.add_job("mail", attempts="25", last_error=error % number) for number in (1, 2)
    ]
    desk.table.add_job("mail", attempts="25", last_error="'KeyError: 1'")
    groups = desk.wait_for(lambda: len(found := desk.admin.get("errors")["groups"]) == 2 and found)

    group = groups[0]
    assert (group["summary"], group["jobs"], group["failed"]) == (
        "ValueError: job <n> failed",
        2,
        2,
    )
    ended = desk.run_bulk(action="retry", fingerprint=group["fingerprint"])
    assert (ended["state"], ended["changed"]) == ("done", 2)
    rows = desk.sql.run("select id from :schema._private_jobs where attempts = 0")
    assert sorted(row[0] for row in rows) == sorted(ids)


# Queues and tasks


def test_queues_that_are_blocked_paused_or_locked_come_first(desk):
    add_pool(desk, DEAD, is_alive=False)
    free = desk.table.add_queue("a free one")
    desk.table.add_queue("z blocked", locked_at="now()", locked_by=f"'{DEAD}'")
    locked = desk.table.add_queue("m locked", locked_at="now()", locked_by=f"'{NODE}'")
    desk.admin.post(
        f"queues/{quote('y/paused %', safe='')}/pause", {"reason": "why", "seconds": 60}
    )
    holder = desk.table.add_job(job_queue_id=locked, locked_at="now()", locked_by=f"'{NODE}'")
    for queue in (free, locked, locked):
        desk.table.add_job(job_queue_id=queue)

    listed = desk.admin.get("queues")["queues"]

    assert [(each["name"], each["state"], each["ready"], each["waiting"]) for each in listed] == [
        ("y/paused %", "paused", 0, 0),
        ("z blocked", "blocked", 0, 0),
        ("m locked", "locked", 0, 2),
        ("a free one", "free", 1, 0),
    ]
    assert listed[0]["paused"]["reason"] == "why"
    assert (listed[1]["worker_health"], listed[2]["job_id"]) == ("dead", str(holder))
    pages, after = [], None
    while True:
        page = desk.admin.get("queues", limit=1, **({} if after is None else {"after": after}))
        pages += page["queues"]
        if (after := page["next"]) is None:
            break
    assert [each["name"] for each in pages] == [each["name"] for each in listed]
    assert [each["name"] for each in desk.admin.get("queues", q="LOCK")["queues"]] == [
        "z blocked",
        "m locked",
    ]


def test_a_queue_and_a_task_are_paused_and_resumed_by_name(desk):
    name = quote("a/b %2F ü", safe="")
    paused = desk.admin.post(f"queues/{name}/pause", {"reason": "r"})["paused"]
    assert (paused["reason"], paused["until"]) == ("r", None)
    assert desk.admin.get("queues")["queues"][0]["state"] == "paused"
    assert desk.admin.post(f"queues/{name}/resume")["paused"] is None
    assert desk.admin.get("queues")["queues"][0]["state"] == "free"

    desk.admin.post(f"tasks/{name}/pause", {"seconds": 60})
    tasks = {each["identifier"]: each for each in desk.admin.get("tasks")["tasks"]}
    assert tasks["a/b %2F ü"]["paused"]["until"] is not None
    desk.admin.post(f"tasks/{name}/resume")
    assert {entry[1] for entry in desk.audit()} == {"pause", "resume"}


def test_a_queue_that_another_program_has_locked_for_years_is_not_resumed(desk):
    desk.table.add_queue("a", locked_at="'9999-01-01'", locked_by="'maintenance'")
    assert desk.admin.get("queues")["queues"][0]["state"] == "paused"

    problem = desk.admin.request("POST", "queues/a/resume")

    assert (problem.status_code, problem.json()["code"]) == (409, "conflict")
    assert "'maintenance' has locked it" in problem.json()["detail"]
    assert not desk.admin.post("queues/b/resume")["was_paused"]


def test_a_pause_warns_about_a_name_that_may_be_mistyped_and_an_end_that_no_worker_sees(desk):
    desk.table.add_queue("invoices")
    [name, end] = desk.admin.post("queues/invoicse/pause", {"seconds": 60})["warnings"]
    assert name == "queue 'invoicse' does not exist yet, did you mean 'invoices'?"
    assert "no Python worker is alive" in end

    add_pool(desk, ALIVE)
    assert desk.admin.post("queues/invoices/pause", {"seconds": 60})["warnings"] == []


def test_a_pause_does_not_wait_for_a_session_that_adds_the_queue(desk):
    with psycopg.connect(desk.database.dsn) as other:
        other.execute(
            desk.sql.text("insert into :schema._private_job_queues (queue_name) values ('a')")
        )
        problem = desk.admin.request("POST", "queues/a/pause", {})
    assert (problem.status_code, problem.json()["code"]) == (504, "timeout")


def test_limits_show_their_values_their_use_and_what_waits_for_them(desk):
    add_limit(desk, ConcurrencyLimit(2, name="slow"))
    add_limit(desk, RATE)
    add_pool(desk, ALIVE, tasks=["mail", "charge"], limits={"charge": ["slow", "stripe"]})
    with open_session(desk.database) as connection:
        connection.run(rent_slots("slow", ALIVE, 2))
    for _ in range(3):
        desk.table.add_job("charge")

    desk.wait_for(lambda: desk.admin.get("limits")["limits"][0]["ready"] == 3)
    slow, stripe = desk.admin.get("limits")["limits"]

    assert (slow["name"], slow["kind"], slow["slots"], slow["used_slots"]) == (
        "slow",
        "concurrency",
        2,
        2,
    )
    assert slow["rented"] == [{"worker": ALIVE, "slots": 2}]
    assert slow["use_text"][0] == "2 of 2 in use"
    assert (stripe["limit_text"], stripe["use_text"][0]) == (str(RATE), "next start now")
    assert stripe["tasks"] == slow["tasks"] == ["charge"]
    assert slow["ready_text"]["link"][1] == "jobs?q=task%3Acharge%20state%3Aready"
    assert {"link": ["slow", "limits"]} in desk.admin.get("tasks/charge")["view"]["panels"][1][
        "list"
    ]


def test_the_overview_and_the_diagnosis_name_the_limit_of_a_late_task(desk):
    add_limit(desk, ConcurrencyLimit(1, name="gpu"))
    add_pool(desk, ALIVE, tasks=["render"], limits={"render": ["gpu"]})
    with open_session(desk.database) as connection:
        connection.run(rent_slots("gpu", ALIVE, 1))
    desk.table.add_job("render", run_at="now() - interval '2 minutes'")

    def find_late(path: str, key: str) -> Any:
        return [
            each
            for each in desk.admin.get(path)[key]
            if each["id"] == "late" and each["subject"]["name"] == "render"
        ]

    [alert] = desk.wait_for(lambda: find_late("overview", "alerts"))
    [finding] = find_late("diagnosis", "findings")

    for each in (alert, finding):
        assert each["evidence"][-1] == "The job waits for a slot of 'gpu' (1 of 1 rented)"
        assert each["advice"] == "Wait, or raise the limit. More workers do not help."
        assert each["shell"].endswith("gpu N")


def test_a_limit_is_set_and_reset_and_the_audit_names_who_did_it(desk):
    add_limit(desk, RATE)

    answer = desk.admin.post("limits/stripe/set", {"value": "50/1m", "burst": 5})
    [changed] = desk.admin.get("limits")["limits"]
    again = desk.admin.post("limits/stripe/reset")
    [restored] = desk.admin.get("limits")["limits"]

    assert answer["sentence"] == (
        "The limit “stripe” is 50 per 1m, burst 5 (in the app: 100 per 1m, burst 20). Workers "
        "follow within seconds."
    )
    assert (changed["starts"], changed["burst"], changed["set_by"]) == (50, 5, "dashboard")
    assert changed["actions"] == ["set_rate", "reset_limit"]
    assert again["limit"] == {"starts": 100, "per_seconds": 60.0, "burst": 20}
    assert (restored["starts"], restored["set_by"], restored["app_text"]) == (100, None, None)
    assert [entry[:2] for entry in desk.audit()] == [
        ("dashboard", "limits set"),
        ("dashboard", "limits reset"),
    ]
    assert desk.admin.post("limits/stripe/reset")["limit"] is None


@pytest.mark.parametrize(
    ("name", "body", "status"),
    [
        ("stripe", {}, 400),
        ("stripe", {"value": "often"}, 400),
        ("stripe", {"value": "5"}, 422),
        ("stripe", {"value": "0/1m"}, 400),
        ("stripe", {"value": "50/1m", "burst": 0}, 400),
        ("strip", {"value": "50/1m"}, 422),
    ],
)
def test_values_that_a_limit_cannot_have_are_rejected(desk, name, body, status):
    add_limit(desk, RATE)

    answer = desk.admin.request("POST", f"limits/{name}/set", body)

    assert answer.status_code == status, answer.text
    assert desk.admin.get("limits")["limits"][0]["set_by"] is None


def test_without_the_tables_of_limits_the_page_names_what_is_missing(desk, monkeypatch):
    missing = Query("check_limits", ("no_schema", "no_schema"), lambda rows: LimitAccess(*rows[0]))
    monkeypatch.setattr("graphile_worker._sql.plans.limits.check_limits", lambda schemas: missing)

    listed = desk.admin.get("limits")
    answer = desk.admin.request("POST", "limits/stripe/set", {"value": "50/1m"})

    assert (listed["is_stored"], listed["limits"]) == (False, [])
    assert "companion schema" in listed["view"]["empty"][1]
    assert (answer.status_code, answer.json()["code"]) == (409, "companion_missing")


def test_a_job_states_that_it_waits_for_a_slot_of_its_limit(desk):
    add_limit(desk, ConcurrencyLimit(1, name="slow"))
    add_pool(desk, ALIVE, tasks=["charge"], limits={"charge": ["slow"]})
    with open_session(desk.database) as connection:
        connection.run(rent_slots("slow", ALIVE, 1))

    shown = desk.admin.get(f"jobs/{desk.table.add_job('charge')}")

    assert shown["reasons"][0]["sentence"] == (
        f"It waits for a slot of 'slow' (1 of 1 rented by {ALIVE})."
    )


def test_each_change_of_a_page_is_a_route_with_the_same_permission():
    routes = {re.sub(r"{\w+}", "{}", each.path): each for each in ROUTES if each.method == "POST"}
    for name, change in CHANGES.items():
        assert [change.path, change.bulk, change.open, change.href].count(None) == 3, name
        if change.path is None:
            continue
        route = routes[re.sub(r"{\w+}", "{}", change.path)]
        fields = () if change.question is None else change.question.fields
        sent = {*(change.body or {}), *(each.name for each in fields)}
        assert route.permission is change.permission, name
        assert sent <= {each.name for each in route.body}, name


def test_tasks_have_the_parameters_of_the_app(desk):
    desk.table.add_job("resize")

    tasks = {each["identifier"]: each for each in desk.admin.get("tasks")["tasks"]}

    assert tasks["resize"]["signature"] == [
        {"name": "width", "type": "int", "default": None, "is_required": True},
        {"name": "name", "type": "str", "default": '"x"', "is_required": False},
    ]


# Workers


def test_jobs_of_a_dead_worker_are_released_and_those_of_others_need_a_confirmation(desk):
    add_pool(desk, DEAD, is_alive=False)
    add_pool(desk, ALIVE)
    jobs = {
        id: desk.table.add_job(locked_at="now()", locked_by=f"'{id}'", attempts="1")
        for id in (DEAD, ALIVE, NODE)
    }

    answer = desk.admin.post("workers/recover", {"ids": [DEAD, ALIVE, NODE, "none", "paused:x"]})

    assert (answer["jobs"], len(answer["rejected"])) == (1, 4)
    forced = {"ids": [ALIVE], "force": True, "confirm": "another"}
    assert desk.admin.post("workers/recover", forced)["jobs"] == 0
    assert desk.admin.post("workers/recover", forced | {"confirm": ALIVE})["jobs"] == 1
    rows = desk.sql.run("select id from :schema._private_jobs where locked_by is not null")
    assert rows == [(jobs[NODE],)]
    assert [entry[1] for entry in desk.audit()] == ["workers recover"] * 2


# Cron


def test_cron_items_come_from_the_app_workers_and_the_database(desk):
    add_pool(
        desk,
        ALIVE,
        crontab=[
            {"id": "of a worker", "task": "t", "schedule": "0 4 * * 1", "tz": "Europe/Rome"},
            7,
        ],
    )
    desk.sql.run(
        "insert into :schema._private_known_crontabs (identifier, known_since, last_execution)"
        " values ('every five', now() - interval '1 day', now() - interval '1 hour'),"
        " ('old', now(), null)"
    )

    items = {each["identifier"]: each for each in desk.admin.get("cron")["items"]}

    assert [(name, each["source"], each["health"]) for name, each in items.items()] == [
        ("every five", "app", "late"),
        ("of a worker", "worker", "unknown"),
        ("old", "database", "unknown"),
    ]
    assert items["every five"]["words"] == "every 5 minutes"
    assert items["of a worker"]["words"] == "at 04:00 on Monday Europe/Rome"
    assert [len(each["next"]) for each in items.values()] == [3, 3, 0]


def test_a_cron_item_of_the_app_is_run_now(desk):
    desk.sql.run("insert into :schema._private_known_crontabs values ('other', now(), null)")

    added = desk.admin.post("cron/every%20five/run")

    assert [entry[1:4] for entry in desk.audit()] == [
        ("cron run", "every five", [int(added["id"])])
    ]
    assert desk.admin.request("POST", "cron/other/run").status_code == 409
    assert desk.admin.request("POST", "cron/nothing/run").status_code == 404


# Bulk changes


def test_a_bulk_change_is_previewed_made_and_audited(desk):
    ids = [desk.table.add_job_in_state("failed") for _ in range(3)]
    desk.table.add_job_in_state("running")

    body = {"action": "reschedule", "q": "", "parameters": {"priority": 7, "run_at": "1h"}}
    preview = desk.admin.post("bulk/preview", body)
    ended = desk.run_bulk(**body)

    assert (preview["total"], preview["locked"], preview["is_capped"]) == (3, 1, False)
    assert (ended["state"], ended["changed"], ended["skipped_locked"]) == ("done", 3, 1)
    assert sorted(desk.audit()[0][3]) == sorted(ids)
    assert desk.audit()[0][1] == "jobs reschedule"


def test_the_first_jobs_are_changed_as_a_trial(desk):
    ids = [desk.table.add_job_in_state("failed") for _ in range(3)]
    token = desk.admin.post("bulk/preview", {"action": "delete", "q": "state:failed"})["token"]

    run = desk.admin.post("bulk", {"token": token, "limit": 1})

    desk.wait_for(lambda: desk.admin.get(f"bulk/{run['id']}")["state"] == "done")
    assert sorted(desk.table.rows()) == ids[1:]


def test_a_change_of_too_many_jobs_does_not_start(desk, monkeypatch):
    for _ in range(3):
        desk.table.add_job_in_state("failed")
    monkeypatch.setattr(desk.board.service, "max_bulk_jobs", 2)
    body = {"action": "retry", "q": "state:failed"}

    preview = desk.admin.post("bulk/preview", body)
    problem = desk.admin.request("POST", "bulk", {"token": preview["token"], "limit": 1})

    assert (preview["total"], preview["is_capped"]) == (2, True)
    assert (problem.status_code, problem.json()["code"]) == (409, "too_many_jobs")
    assert not desk.sql.run("select from :schema._private_jobs where attempts = 0")
    desk.sql.run("delete from :schema._private_jobs where id = (select max(id) from :schema.jobs)")
    assert desk.run_bulk(**body)["changed"] == 2


def test_a_token_starts_one_run_of_one_user_and_expires(desk):
    desk.table.add_job_in_state("failed")

    def preview() -> str:
        token: str = desk.admin.post("bulk/preview", {"action": "retry", "q": ""})["token"]
        return token

    token = preview()
    desk.admin.post("bulk", {"token": token})
    assert desk.admin.request("POST", "bulk", {"token": token}).json()["code"] == "stale_token"

    token = preview()
    runs = get_bulk_runs(desk.board.service)
    with pytest.raises(Problem, match="too old"):
        runs.start(token, User("another", "admin"), None)
    runs._previews[token] = replace(runs._previews[token], expires_at=0.0)
    assert desk.admin.request("POST", "bulk", {"token": token}).json()["code"] == "stale_token"


def test_a_user_keeps_the_last_20_previews(desk):
    body = {"action": "retry", "q": "state:failed"}
    tokens = [desk.admin.post("bulk/preview", body)["token"] for _ in range(21)]

    assert desk.admin.request("POST", "bulk", {"token": tokens[0]}).status_code == 409
    for token in tokens[1:]:
        desk.wait_for(lambda token=token: start_run(desk, token))


def start_run(desk: Desk, token: str) -> bool:
    """Start a run, unless too many are running."""
    answer = desk.admin.request("POST", "bulk", {"token": token})
    assert answer.status_code == 202 or answer.json()["code"] == "conflict", answer.text
    return answer.status_code == 202


def test_a_run_is_canceled_and_reports_what_it_has_changed(desk):
    desk.sql.run(
        "insert into :schema._private_tasks (identifier) values ('many') on conflict do nothing"
    )
    desk.sql.run(
        "insert into :schema._private_jobs (task_id, attempts, max_attempts)"
        " select id, 1, 1 from :schema._private_tasks, generate_series(1, 20000)"
        " where identifier = 'many'"
    )
    token = desk.admin.post("bulk/preview", {"action": "retry", "q": "task:many"})["token"]
    run = desk.admin.post("bulk", {"token": token})["id"]
    desk.wait_for(lambda: desk.admin.get(f"bulk/{run}")["changed"] > 0)

    desk.admin.delete(f"bulk/{run}")

    ended = desk.wait_for(
        lambda: (found := desk.admin.get(f"bulk/{run}"))["state"] != "running" and found
    )
    changed = desk.sql.value("select count(*) from :schema._private_jobs where attempts = 0")
    assert ended["state"] == "canceled"
    assert changed in (ended["changed"], ended["changed"] + 1000)
    assert changed < 20_000


def test_the_stream_has_the_progress_of_a_run(desk):
    desk.table.add_job_in_state("failed")
    with desk.admin.http.stream("GET", "api/v1/stream") as response:
        lines = response.iter_lines()
        assert next(line for line in lines if line.startswith("event: overview"))
        token = desk.admin.post("bulk/preview", {"action": "retry", "q": ""})["token"]
        run = desk.admin.post("bulk", {"token": token})
        states = []
        for line in lines:
            if line == "event: bulk":
                event = json.loads(next(lines).removeprefix("data: "))
                # The first event may be about the run of an earlier test.
                if event["id"] == run["id"]:
                    states.append(event["state"])
            if "done" in states:
                break

    assert states[-1] == "done"


def test_each_bulk_action_needs_its_permission(desk):
    job = desk.table.add_job_in_state("failed")
    with open_dashboard(desk.database, role="operator") as board:
        operator = board.sign_in()
        for action, status in [("retry", 200), ("delete", 403), ("fail", 403), ("unlock", 403)]:
            body = {"action": action, "ids": [str(job)]}
            assert operator.request("POST", "bulk/preview", body).status_code == status, action


# History and audit


def test_the_series_has_a_point_for_each_bucket(desk):
    for number in range(10):
        add_outcome(desk, number, succeeded=number > 0, seconds_ago=90.0)

    series = desk.admin.get("history/series", range="1h")

    assert (len(series["points"]), series["step_seconds"], series["source"]) == (
        60,
        60.0,
        "outcomes",
    )
    assert sum(each["succeeded"] for each in series["points"]) == 9
    assert sum(each["failed"] for each in series["points"]) == 1
    point = next(each for each in series["points"] if each["succeeded"])
    assert (point["run_p50"], point["wait_p95"]) == (2.0, 1.0)
    assert desk.admin.get("history/series", range="7d", task="none")["points"][0]["succeeded"] == 0


def test_without_outcomes_the_series_has_the_jobs_that_completed_of_all_tasks(desk, monkeypatch):
    def raise_missing(*_arguments: Any, **_options: Any) -> Any:
        raise HistoryMissing("graphile_worker_ext")

    poller = desk.board.service.poller
    desk.admin.get("overview")
    point = _poller.SeriesPoint(poller.latest.now, 0, 0, 0, 0, None, 1.0, 2.0)
    sample = replace(poller.latest, series=(point,))
    monkeypatch.setattr(history, "plan_get_series", raise_missing)
    monkeypatch.setattr(poller, "get", lambda: asyncio.sleep(0, sample))

    series = desk.admin.get("history/series", range="6h")
    assert (series["source"], len(series["points"])) == ("memory", 1)
    step = series["step_seconds"]
    assert (series["points"][0]["completed"], series["points"][0]["succeeded"]) == (2 * step, None)
    assert desk.admin.get("history/series", range="6h", task="a")["points"] == []


def test_outcomes_are_listed_page_by_page(desk):
    for number in range(3):
        add_outcome(desk, number, seconds_ago=float(number))

    first = desk.admin.get("history/outcomes", limit=2, q="task:resize")
    second = desk.admin.get("history/outcomes", limit=2, after=first["next"], q="task:resize")

    assert [each["id"] for each in first["outcomes"] + second["outcomes"]] == ["0", "1", "2"]
    assert desk.admin.request("GET", "history/outcomes", params={"q": "queue:a"}).status_code == 400
    for first in ("0001-01-01T00:00:00+00:00", "0001-01-01T00:00:00+14:00"):
        assert desk.admin.get("history/outcomes", after=f"{first}_1")["outcomes"] == []
    everything = desk.admin.get("history/outcomes", after="9999-12-31T23:59:59-12:00_1")
    assert len(everything["outcomes"]) == 3


def test_a_search_of_the_audit_reads_only_its_newest_entries(desk, monkeypatch):
    ids = [desk.admin.post("jobs", {"task": "a"})["id"] for _ in range(3)]
    monkeypatch.setattr(desk.board.service, "searched_audit_entries", 2)

    found = [desk.admin.get("audit", job_id=job) for job in ids]

    assert [len(each["entries"]) for each in found] == [0, 1, 1]
    assert found[0]["searched_newest"] == 2
    everything = desk.admin.get("audit")
    assert (len(everything["entries"]), everything["searched_newest"]) == (3, None)


def test_the_audit_is_searched_by_actor_action_and_job(desk):
    job = desk.admin.post("jobs", {"task": "a"})["id"]
    desk.admin.post("jobs", {"task": "b"})

    entries = desk.admin.get("audit", job_id=job)["entries"]

    assert [(each["action"], each["job_ids"]) for each in entries] == [("jobs add", [job])]
    assert len(desk.admin.get("audit", actor=entries[0]["actor"], limit=1)["entries"]) == 1
    assert desk.admin.get("audit", action="jobs retry")["entries"] == []


# Hostile requests

ODD_TEXTS = [
    "",
    "\x00",
    "\ud800",
    "a/b",
    "%2F%00",
    "../..",
    "<script>",
    "9" * 40,
    "-1",
    "x" * 20_000,
    "ü",
    "1e400",
    "NaN",
    "'; drop table x; --",
]
ODD_VALUES: list[Any] = [
    None, True, 0, -1, 10**30, 2**63, 1.5, "", "\x00", "\ud800", "x" * 20_000, [], {}, [None],
    [10**30], ["\x00"], {"a": 1}, [[]], "9" * 30, "now", "infinity", [{"a": []}],
]  # fmt: skip


# In the gate, each parameter gets one value in this number. The next parameter gets others.
STEP = tiers.size(gate=6, nightly=1)


class Attacker:
    """Sends hostile requests, and notes those that fail."""

    def __init__(self, caller: Caller) -> None:
        self.failures: list[tuple[Any, ...]] = []
        self._caller = caller
        self._offset = 0

    def choose(self, values: list[Any]) -> list[Any]:
        self._offset = (self._offset + 1) % STEP
        return values[self._offset :: STEP]

    def send(self, route: ApiRoute, path: str, *what: Any, **more: Any) -> None:
        status = self._caller.request(route.method, path.removeprefix("/"), **more).status_code
        if status >= 500:
            self.failures.append((route.path, *(repr(each)[:40] for each in what), status))


def fill_path(route: ApiRoute, text: str) -> str:
    parts = [
        quote(text, safe="", errors="surrogatepass") if part.startswith("{") else part
        for part in route.path.split("/")
    ]
    return "/".join(parts)


@pytest.mark.timeout(300)
def test_hostile_requests_are_rejected_or_answered_and_never_fail(desk):
    attacker = Attacker(desk.admin)
    for route in OWN_ROUTES:
        for text in attacker.choose(ODD_TEXTS) if "{" in route.path else ():
            attacker.send(route, fill_path(route, text), text)
        path = fill_path(route, "1")
        for parameter in route.query:
            for text in attacker.choose(ODD_TEXTS):
                query = {parameter.name: text.encode(errors="surrogatepass")}
                attacker.send(route, path, parameter.name, text, params=query)
        required = {each.name: "x" for each in route.body if each.is_required}
        if route.path == "/bulk/preview":
            required |= {"action": "reschedule", "q": "id:1"}
        for parameter in route.body:
            for value in attacker.choose(ODD_VALUES):
                body = {**required, parameter.name: value}
                attacker.send(route, path, parameter.name, value, body=body)
        if route.path == "/bulk/preview":
            for name in ("run_at", "priority", "attempts", "max_attempts"):
                for value in attacker.choose(ODD_VALUES):
                    body = {**required, "parameters": {name: value}}
                    attacker.send(route, path, name, value, body=body)
    large = {"task": "x", "payload": json.dumps("y" * 1_000_000)}
    assert desk.admin.request("POST", "jobs/check", large).status_code == 200
    assert attacker.failures == []


def test_names_with_slashes_and_percent_signs_are_read_from_the_path(desk):
    with sync.Client(desk.database.dsn, schema=desk.database.schema) as client:
        client.add_job("a/b%2F")

    desk.admin.post(f"tasks/{quote('a/b%2F', safe='')}/pause")

    tasks = {each["identifier"]: each for each in desk.admin.get("tasks")["tasks"]}
    assert tasks["a/b%2F"]["paused"] is not None
