"""The pages of the admin: who sees what, what each action changes, and what it leaves alone."""

import json
import re
from datetime import UTC, datetime, timedelta
from functools import partial
from html import unescape
from html.parser import HTMLParser
from typing import Any
from unittest.mock import patch

import pytest
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.auth.models import Permission, User
from django.db import DatabaseError, connection, connections
from django.test import Client, TestCase
from django.test.utils import CaptureQueriesContext

from graphile_worker._sql.identifiers import Schemas, quote_identifier
from graphile_worker.contrib.django import app
from graphile_worker.contrib.django._admin import changes, jobs, searches
from graphile_worker.contrib.django.models import Job, Outcome, Worker
from graphile_worker.ops.bulk import plan_bulk_change

JOBS, WORKERS, OUTCOMES = (
    f"/admin/graphile_worker/{name}/" for name in ("job", "worker", "outcome")
)
ACTION = f"{JOBS}action/"
ACTIONS = ("retry", "reschedule", "fail", "complete", "unlock")
VALUES = {"reschedule": {"delay": "2h"}, "fail": {"reason": "not needed"}}

EVIL = "<img src=x onerror=alert(1)>\"'"
CONTROL = "a\x1b[31mb\u202ec"
TRACEBACK = "ValueError: boom\n\nTraceback (most recent call last):\n  secret frame"


def run_sql(text: str, *args: object, alias: str = "default") -> list[tuple[Any, ...]]:
    schemas = Schemas.from_names(app.schema)
    for name, schema in (("EXT", schemas.companion), ("GW", schemas.shared)):
        text = text.replace(f"{name}.", f"{quote_identifier(schema)}.".replace("%", "%%"))
    with connections[alias].cursor() as cursor:
        cursor.execute(text, args)
        return cursor.fetchall() if cursor.description else []


def add(task: str = "send", payload: object = None, **options: Any) -> int:
    return app.add_job(task, payload, **options).id


def add_failed(task: str = "send", error: str = TRACEBACK, **options: Any) -> int:
    job_id = add(task, **options)
    set_columns(job_id, attempts=25, last_error=error)
    return job_id


def add_running(worker: str = "pypool-000000000000000001", hours: int = 0) -> int:
    job_id = add("sleep")
    locked_at = datetime.now(UTC) - timedelta(hours=hours)
    set_columns(job_id, attempts=1, locked_at=locked_at, locked_by=worker)
    return job_id


def set_columns(job_id: int, **values: object) -> None:
    columns = ", ".join(f"{name} = %s" for name in values)
    run_sql(f"update GW._private_jobs set {columns} where id = %s", *values.values(), job_id)


def read_jobs() -> list[tuple[Any, ...]]:
    return run_sql("select jobs::text from GW._private_jobs as jobs order by id")


def add_worker(name: str, *, seconds_ago: int = 0, **details: object) -> None:
    run_sql(
        "insert into EXT.pools (id, seen_at, lease, details) values "
        "(%s, now() - %s * interval '1 second', interval '30 seconds', %s)",
        name,
        seconds_ago,
        json.dumps(details),
    )


def add_outcome(
    job_id: int, *, task: str = "send", error: str | None = None, result: object = None
):
    text = None if result is None else json.dumps(result)
    run_sql(
        "insert into EXT.outcomes (job_id, created_at, run_at, started_at, finished_at, slot, "
        "succeeded, has_result, attempts, task_identifier, pool_id, result, error) values "
        "(%s, now(), now(), now() - interval '3 seconds', now(), 0, %s, %s, 2, %s, 'w1', %s, %s)",
        job_id,
        error is None,
        text is not None,
        task,
        text,
        error,
    )
    run_sql(
        "insert into EXT.attempts (job_id, started_at, duration, slot, attempt, pool_id, error) "
        "values (%s, now(), 1.5, 0, 1, 'w1', %s)",
        job_id,
        TRACEBACK,
    )


def break_updates(job_id: int, code: str) -> None:
    """Make each change of a job fail with an error code of PostgreSQL."""
    run_sql(
        "create or replace function GW.break_updates() returns trigger language plpgsql as $$ "
        f"begin if new.id = {job_id} and new.last_error is not null and new.attempts = 0 then "
        f"raise exception 'broken' using errcode = '{code}'; end if; return new; end $$"
    )
    run_sql(
        "create or replace trigger break_updates before update on GW._private_jobs "
        "for each row execute function GW.break_updates()"
    )


class Page(HTMLParser):
    """The visible text of a page, its links, its form fields and its scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.links: list[str] = []
        self.inputs: dict[str, list[str]] = {}
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.parts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        self.tags.append((tag, values))
        if tag == "a":
            self.links.append(values.get("href") or "")
        if tag == "input":
            self.inputs.setdefault(values.get("name") or "", []).append(values.get("value") or "")

    def handle_data(self, data: str) -> None:
        self.parts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.parts).split())


class AdminCase(TestCase):
    def setUp(self) -> None:
        self.user = User.objects.create_user("ada", password="x", is_staff=True)
        self.client.force_login(self.user)

    def grant(self, *codenames: str) -> None:
        permissions = Permission.objects.filter(
            content_type__app_label="graphile_worker", codename__in=codenames
        )
        assert len(permissions) == len(codenames), codenames
        self.user.user_permissions.set(permissions)

    def grant_all(self) -> None:
        User.objects.update(is_superuser=True)

    def open(self, url: str, status: int = 200, **parameters: Any) -> Page:
        response = self.client.get(url, parameters)
        assert response.status_code == status, (url, response.status_code, response.content[:500])
        return Page(response.content.decode())

    def post(self, url: str, last_id: int | None, status: int = 302, **values: Any) -> Page:
        if last_id is not None:
            values["last_id"] = last_id
        response = self.client.post(url, values, follow=False)
        assert response.status_code == status, (url, response.status_code, response.content[:500])
        return Page(response.content.decode())

    def read_messages(self) -> str:
        """Return the messages that the next page shows."""
        return self.open(JOBS).text

    def change(self, action: str, **query: Any) -> Page:
        """Preview an action, confirm it, and return the preview."""
        preview = self.open(ACTION, action=action, **query)
        self.confirm(preview, **VALUES.get(action, {}))
        return preview

    def confirm(self, preview: Page, **values: str) -> None:
        forms = [each.get("action") or "" for tag, each in preview.tags if tag == "form"]
        [url] = [each for each in forms if ACTION in each]
        self.post(url, int(preview.inputs["last_id"][0]), **values)


class Permissions(AdminCase):
    def test_pages_need_the_permission_to_view_their_model(self) -> None:
        job_id = add()
        add_outcome(99)
        all_pages = {
            "view_job": [JOBS, f"{JOBS}{job_id}/change/"],
            "view_worker": [WORKERS],
            "view_outcome": [OUTCOMES, f"{OUTCOMES}99/change/"],
        }
        for codename, urls in all_pages.items():
            for url in urls:
                self.grant()
                self.open(url, 403)
                self.grant(*(set(all_pages) - {codename}))
                self.open(url, 403)
                self.grant(codename)
                self.open(url)
        self.grant()
        self.grant_all()
        for url in sum(all_pages.values(), []):
            self.open(url)
        self.client.logout()
        for url in sum(all_pages.values(), []):
            self.open(url, 302)

    def test_each_action_needs_its_own_permission(self) -> None:
        for action in ACTIONS:
            job_id = add_running(hours=5) if action == "unlock" else add(run_at=timedelta(hours=1))
            before = read_jobs()
            others = {f"{each}_job" for each in ACTIONS if each != action}
            self.grant("view_job", "view_payload", *others)
            listed = self.open(JOBS)
            assert f'value="{action}"' not in listed.html
            assert f"action={action}" not in self.open(f"{JOBS}{job_id}/change/").html
            self.open(f"{ACTION}?action={action}&id={job_id}", 403)
            self.post(
                f"{ACTION}?action={action}&id={job_id}", job_id, 403, **VALUES.get(action, {})
            )
            # Without the permission to view jobs, that of the action is not enough.
            self.grant(f"{action}_job")
            self.post(
                f"{ACTION}?action={action}&id={job_id}", job_id, 403, **VALUES.get(action, {})
            )
            assert read_jobs() == before
            self.grant("view_job", f"{action}_job")
            assert f'value="{action}"' in self.open(JOBS).html
            assert f"action={action}&amp;id={job_id}" in self.open(f"{JOBS}{job_id}/change/").html
            self.change(action, id=job_id)
            assert read_jobs() != before, action

    def test_a_user_who_may_only_view_sees_no_actions(self) -> None:
        job_id = add()
        self.grant("view_job")
        for url in (JOBS, f"{JOBS}{job_id}/change/"):
            page = self.open(url)
            assert "id" not in page.inputs
            assert ACTION not in page.html.replace(f'action="{ACTION}"', "")

    def test_models_cannot_be_added_changed_or_deleted(self) -> None:
        self.grant_all()
        job_id = add()
        for url in (JOBS, WORKERS, OUTCOMES):
            assert "delete_selected" not in self.open(url).html
            assert self.client.get(f"{url}add/").status_code == 404
            assert self.client.post(f"{url}add/").status_code == 404
            assert self.client.post(f"{url}{job_id}/delete/").status_code == 404
        before = read_jobs()
        self.client.post(JOBS, {"action": "delete_selected", "_selected_action": [job_id]})
        self.client.post(f"{JOBS}{job_id}/change/", {"attempts": 5})
        assert read_jobs() == before
        index = self.open("/admin/")
        for url in (JOBS, WORKERS, OUTCOMES):
            assert url in index.links
            assert f"{url}add/" not in index.links

    def test_payloads_results_and_whole_errors_need_a_permission(self) -> None:
        secret = {"card": "4711-0000"}
        job_id = add_failed(payload=secret)
        add_outcome(98, result=secret)
        add_outcome(99, error=TRACEBACK)
        urls = [f"{JOBS}{job_id}/change/", f"{OUTCOMES}98/change/", f"{OUTCOMES}99/change/"]
        self.grant("view_job", "view_outcome")
        for url in urls:
            page = self.open(url)
            assert "4711-0000" not in page.html
            assert "secret frame" not in page.html
            assert "ValueError: boom" in page.text
        assert "Hidden" in self.open(urls[0]).text
        assert "Hidden" in self.open(urls[1]).text
        # A search would tell what a payload contains.
        for text in ("payload.card:4711-0000", "-payload.card:1"):
            page = self.open(JOBS, q=text)
            assert "may not search payloads" in page.text
            assert str(job_id) not in page.text
        self.grant("view_job", "view_outcome", "retry_job")
        self.open(ACTION, 302, action="retry", all="1", q="payload.card:4711-0000")
        assert "may not search payloads" in self.read_messages()
        self.grant("view_job", "view_outcome", "view_payload")
        assert "4711-0000" in self.open(urls[0]).html
        assert "secret frame" in self.open(urls[0]).html
        assert "4711-0000" in self.open(urls[1]).html
        assert "secret frame" in self.open(urls[2]).html
        assert str(job_id) in self.open(JOBS, q="payload.card:4711-0000").text

    def test_searches_of_errors_need_a_permission(self) -> None:
        job_id = add_failed("mail", job_key="order-1")
        add_outcome(99, task="mail", error=TRACEBACK)
        job_url, outcome_url = f"{JOBS}{job_id}/change/", f"{OUTCOMES}99/change/"
        self.grant("view_job", "view_outcome", "retry_job")
        for text in ("error:frame", "-error:frame"):
            for url in (JOBS, OUTCOMES):
                page = self.open(url, q=text)
                assert "may not search errors" in page.text
                assert not {job_url, outcome_url} & set(page.links)
            self.open(ACTION, 302, action="retry", all="1", q=text)
            assert "may not search errors" in self.read_messages()
        # Bare words match the task and the job key, but not the error.
        cases = {"frame": False, "-frame": True, "-mail": False, "MAI": True}
        for text, is_found in cases.items():
            assert (job_url in self.open(JOBS, q=text).links) is is_found, text
            assert (outcome_url in self.open(OUTCOMES, q=text).links) is is_found, text
            title = "Retry 1 job?" if is_found else "No jobs to retry"
            assert title in self.open(ACTION, action="retry", all="1", q=text).text
        assert job_url in self.open(JOBS, q="order-1").links
        # The words of a command match errors, so there is no command for this search.
        with patch.object(changes, "MAX_JOBS", 0):
            page = self.open(ACTION, action="retry", all="1", q="mail")
            assert "at most 0 jobs" in page.text
            assert "manage.py" not in page.text
        self.grant("view_job", "view_outcome", "retry_job", "view_payload")
        for text in ("error:frame", "frame"):
            assert job_url in self.open(JOBS, q=text).links
            assert outcome_url in self.open(OUTCOMES, q=text).links
            assert "Retry 1 job?" in self.open(ACTION, action="retry", all="1", q=text).text


class Changes(AdminCase):
    def setUp(self) -> None:
        super().setUp()
        self.grant_all()

    def test_actions_do_what_their_preview_shows(self) -> None:
        failed, scheduled, ready = add_failed(), add(run_at=timedelta(hours=3)), add()
        ids = [failed, scheduled, ready]
        preview = self.change("retry", id=ids)
        assert "Retry 2 jobs?" in preview.text
        assert "1 job in another state stays as it is" in preview.text
        assert run_sql("select attempts from GW._private_jobs where id = %s", failed) == [(0,)]
        assert "Retried 2 jobs." in self.read_messages()
        self.change("fail", id=ids)
        rows = run_sql("select attempts = max_attempts, last_error from GW._private_jobs")
        assert rows == [(True, "not needed")] * 3
        self.change("complete", id=[failed, scheduled])
        assert [row[0] for row in run_sql("select id from GW.jobs")] == [ready]
        assert "Deleted 2 jobs." in self.read_messages()

    def test_jobs_that_a_worker_holds_are_left_alone_and_counted(self) -> None:
        add_worker("pypool-000000000000000001", host="web-1")
        running = [add_running(), add_running()]
        waiting = add(run_at=timedelta(hours=1))
        before = run_sql(
            "select jobs::text from GW._private_jobs as jobs where id = any(%s)", running
        )
        for action in ("retry", "reschedule", "fail", "complete"):
            preview = self.change(action, id=[*running, waiting])
            assert "2 jobs that workers hold stay as they are" in preview.text, action
            assert "Skipped 2 jobs that a worker holds." in self.read_messages()
            set_columns(waiting, attempts=0, run_at=datetime.now(UTC) + timedelta(hours=1))
        after = run_sql(
            "select jobs::text from GW._private_jobs as jobs where id = any(%s)", running
        )
        assert after == before
        # A job that starts to run after the preview is left alone, too.
        job_id = add(run_at=timedelta(hours=1))
        self.open(ACTION, action="complete", id=job_id)
        set_columns(job_id, locked_at=datetime.now(UTC), locked_by="pypool-000000000000000001")
        self.post(f"{ACTION}?action=complete&id={job_id}", job_id)
        assert run_sql("select id from GW.jobs where id = %s", job_id) == [(job_id,)]
        assert "Deleted 0 jobs." in self.read_messages()

    def test_unlock_releases_only_jobs_of_dead_workers(self) -> None:
        add_worker("pypool-00000000000000000a")
        add_worker("pypool-00000000000000000d", seconds_ago=3600)
        alive = add_running("pypool-00000000000000000a")
        dead = add_running("pypool-00000000000000000d")
        old = add_running("pool-000000000000000000", hours=5)
        preview = self.change("unlock", id=[alive, dead, old])
        assert "Unlock 2 jobs?" in preview.text
        locked = run_sql("select id from GW.jobs where locked_at is not null")
        assert locked == [(alive,)]

    def test_run_at_takes_a_delay_or_a_time(self) -> None:
        job_id = add()
        url = f"{ACTION}?action=reschedule&id={job_id}"
        wrong = [
            {},
            {"delay": "soon"},
            {"delay": "200000d"},
            {"run_at": "never"},
            {"delay": "1h", "run_at": "2030-01-01T10:00"},
        ]
        before = read_jobs()
        for values in wrong:
            page = self.post(url, job_id, 200, **values)
            assert "errorlist" in page.html, values
        assert read_jobs() == before
        self.post(url, job_id, run_at="2030-01-01T10:00")
        [(run_at,)] = run_sql("select run_at from GW.jobs")
        assert run_at == datetime(2030, 1, 1, 16, 0, tzinfo=UTC)  # America/Chicago
        self.post(url, job_id, delay="90m")
        [(left,)] = run_sql("select run_at - now() from GW.jobs")
        assert timedelta(minutes=80) < left <= timedelta(minutes=90)
        self.post(url, job_id, delay="0s")
        [(left,)] = run_sql("select run_at - now() from GW.jobs")
        assert left <= timedelta(minutes=1)

    def test_all_jobs_that_match_can_be_chosen(self) -> None:
        ids = [add_failed("mail") for _ in range(3)]
        other = add_failed("other")
        query = {"all": "1", "q": "error:boom", "task": "mail", "state": "failed"}
        preview = self.open(ACTION, action="complete", **query)
        assert "Delete 3 jobs?" in preview.text
        # A job that was added after the preview stays.
        late = add_failed("mail")
        self.confirm(preview)
        assert [row[0] for row in run_sql("select id from GW.jobs order by id")] == [other, late]
        assert ids

    def test_more_jobs_than_the_limit_need_the_command(self) -> None:
        for _ in range(4):
            add_failed("it's")
        before = read_jobs()
        with patch.object(changes, "MAX_JOBS", 3):
            page = self.open(ACTION, action="retry", all="1", task="it's")
            assert "at most 3 jobs" in page.text
            command = """python manage.py graphile_worker jobs retry --where 'task:it'"'"'s'"""
            assert command in page.text
            assert "last_id" not in page.inputs
            page = self.post(f"{ACTION}?action=retry&all=1", 10**9, 200)
            assert "jobs retry --all" in page.text
            # The limit is that of the jobs that change.
            page = self.open(ACTION, action="fail", all="1")
            assert "No jobs to fail" in page.text
            assert "More than 3 other jobs stay as they are" in page.text
        assert read_jobs() == before

    def test_a_preview_counts_few_more_jobs_than_the_limit(self) -> None:
        for _ in range(4):
            add_failed()
        url = f"{ACTION}?action=retry&all=1"
        with patch.object(changes, "MAX_JOBS", 2):
            for request in (lambda: self.open(url), lambda: self.post(url, 10**9, 200)):
                with CaptureQueriesContext(connection) as queries:
                    page = request()
                assert "More than 2 jobs change" in page.text
                counts = [x["sql"] for x in queries if "group by" in x["sql"]]
                assert len(counts) == 2
                assert all("limit 3::int" in text for text in counts)

    def test_a_preview_that_takes_too_long_shows_the_command(self) -> None:
        # A lock makes the preview exceed a limit on fast machines, too.
        locker = connection.copy()
        schema = quote_identifier(app.schema)
        with locker.cursor() as cursor:
            cursor.execute("begin")
            cursor.execute(f"lock table {schema}._private_jobs in access exclusive mode")
            try:
                page = self.open(ACTION, action="retry", all="1", task="mail")
                posted = self.post(f"{ACTION}?action=retry&all=1", 10**9, 200)
            finally:
                locker.close()
        assert "locked a table of the queue" in page.text
        assert "jobs retry --where task:mail" in page.text
        assert "last_id" not in page.inputs
        assert "jobs retry --all" in posted.text

    def test_a_change_that_fails_midway_shows_its_error(self) -> None:
        ids = [add_failed() for _ in range(3)]
        url = f"{ACTION}?action=retry&all=1"
        one_by_one = partial(plan_bulk_change, batch_size=1)
        with patch.object(changes, "plan_bulk_change", one_by_one):
            break_updates(ids[1], "P0001")
            with pytest.raises(DatabaseError, match="broken"):
                self.client.post(url, {"last_id": ids[2]})
            assert not LogEntry.objects.exists()
            # After an error of the queue, the log has the jobs that are changed.
            break_updates(ids[1], "57014")
            set_columns(ids[0], attempts=25)
            self.post(url, ids[2])
        assert "took longer than" in self.read_messages()
        assert LogEntry.objects.get().object_repr == "1 job"

    def test_a_change_needs_a_post_request_with_a_csrf_token(self) -> None:
        job_id = add_failed()
        before = read_jobs()
        strict = Client(enforce_csrf_checks=True)
        strict.force_login(self.user)
        url = f"{ACTION}?action=retry&id={job_id}"
        assert strict.post(url, {"last_id": job_id}).status_code == 403
        assert self.client.put(url).status_code == 405
        # A POST request without the preview shows the preview.
        self.post(url, None, 200)
        for address in (url, f"{url}&last_id={job_id}&post=yes&confirm=1"):
            self.open(address)
        assert read_jobs() == before
        page = strict.get(url)
        token = Page(page.content.decode()).inputs["csrfmiddlewaretoken"][-1]
        values = {"last_id": job_id, "csrfmiddlewaretoken": token}
        assert strict.post(url, values).status_code == 302
        assert read_jobs() != before

    def test_get_requests_change_nothing(self) -> None:
        add_worker("pypool-00000000000000000d", seconds_ago=3600)
        ids = [add(), add_failed(), add_running(), add_running("pypool-00000000000000000d")]
        add_outcome(99)
        before = read_jobs()
        for url in (JOBS, WORKERS, OUTCOMES, f"{OUTCOMES}99/change/"):
            self.open(url)
        for job_id in ids:
            self.open(f"{JOBS}{job_id}/change/")
        for action in ACTIONS:
            self.open(ACTION, action=action, id=ids)
            self.open(ACTION, action=action, all="1")
        assert read_jobs() == before
        assert not run_sql("select 1 from EXT.audit")
        assert not LogEntry.objects.exists()

    def test_changes_are_audited_and_logged(self) -> None:
        one, two, three = (add_failed() for _ in range(3))
        self.change("retry", id=one)
        self.change("complete", all="1", state="failed")
        entries = run_sql("select actor, action, filter, job_ids from EXT.audit order by id")
        assert entries[0] == ("ada", "jobs retry", f"id:{one} id:<={one}", [one])
        assert entries[1][:2] == ("ada", "jobs complete")
        assert entries[1][3] == [two, three]
        logged = list(LogEntry.objects.order_by("id"))
        assert [each.user for each in logged] == [self.user] * 2
        assert [each.action_flag for each in logged] == [CHANGE, DELETION]
        assert logged[0].object_id == str(one)
        assert logged[0].object_repr == f"job {one} (send)"
        assert logged[0].get_admin_url() == f"{JOBS}{one}/change/"
        assert logged[1].object_id is None
        assert logged[1].object_repr == "2 jobs"
        assert "state:failed" in logged[1].change_message
        # A change that changes nothing leaves no entry.
        self.change_nothing(one)
        assert LogEntry.objects.count() == 2
        # The page of the job shows its changes, also those of the command.
        page = self.open(f"{JOBS}{one}/change/")
        assert "ada jobs retry" in page.text

    def change_nothing(self, job_id: int) -> None:
        page = self.open(ACTION, action="retry", id=job_id)
        assert "No jobs to retry" in page.text
        assert "last_id" not in page.inputs
        self.post(f"{ACTION}?action=retry&id={job_id}", job_id)

    def test_a_change_leads_back_to_where_it_was_chosen(self) -> None:
        job_id = add_failed()
        of_list = f"{ACTION}?action=retry&id={job_id}&state=failed"
        response = self.client.post(of_list, {"last_id": job_id})
        assert response["Location"] == f"{JOBS}?state=failed"
        of_job = f"{ACTION}?action=fail&id={job_id}&from=job"
        assert f"{JOBS}{job_id}/change/" in self.open(of_job).links
        response = self.client.post(of_job, {"last_id": job_id})
        assert response["Location"] == f"{JOBS}{job_id}/change/"
        response = self.client.post(of_job.replace("fail", "complete"), {"last_id": job_id})
        assert response["Location"] == JOBS

    def test_values_of_payloads_are_not_in_the_log(self) -> None:
        add_failed(payload={"card": "4711-0000"})
        self.change("retry", all="1", q="payload.card:4711-0000")
        assert "4711" not in LogEntry.objects.get().change_message

    def test_requests_that_name_nothing_are_rejected(self) -> None:
        job_id = add()
        for query in ({}, {"action": "explode", "id": 1}, {"action": "retry", "id": "x"}):
            self.open(ACTION, 404, **query)
        self.open(ACTION, 404, action="retry", id=job_id, database="nowhere")
        self.open(ACTION, 302, action="retry")
        assert "No jobs selected" in self.read_messages()
        self.open(ACTION, 302, action="retry", all="1", q="colour:red")
        assert "expected one of task" in self.read_messages()
        page = self.open(ACTION, action="retry", id=10**12)
        assert "1 job no longer exists" in page.text


class Lists(AdminCase):
    def setUp(self) -> None:
        super().setUp()
        self.grant_all()

    def list_ids(self, **query: Any) -> list[int]:
        return [int(each) for each in self.open(JOBS, **query).inputs.get("id", [])]

    def test_jobs_are_listed_newest_first_in_pages(self) -> None:
        ids = [add() for _ in range(7)]
        seen: list[int] = []
        query: dict[str, Any] = {"task": "send"}
        with patch.object(jobs, "PAGE_SIZE", 3):
            while True:
                page = self.open(JOBS, **query)
                seen += [int(each) for each in page.inputs["id"]]
                older = [link for link in page.links if "before=" in link]
                if not older:
                    break
                assert "task=send" in older[0]
                query["before"] = re.findall(r"before=(\d+)", older[0])[0]
        assert seen == ids[::-1]

    def test_search_takes_the_language_of_jobs_list(self) -> None:
        failed = add_failed("send_mail", job_key="order-1")
        queued = add("render", queue_name="pdf")
        later = add("render", run_at=timedelta(hours=2))
        cases = {
            "": [later, queued, failed],
            "send": [failed],
            "task:render": [later, queued],
            "task:rend* -queue:none": [queued],
            "state:failed": [failed],
            "error:BOOM": [failed],
            "key:order-*": [failed],
            f"id:{queued}": [queued],
            str(queued): [queued],
            "run:>1h": [later],
            "attempts:>3": [failed],
            "task:nothing": [],
        }
        for text, ids in cases.items():
            assert self.list_ids(q=text) == ids, text
        assert self.list_ids(state="failed") == [failed]
        assert self.list_ids(task="render", queue="pdf") == [queued]
        assert self.list_ids(q="state:scheduled", task="render") == [later]
        mistakes = {
            "colour:red": "Filter, column 1: expected one of task, queue",
            "state:broken": "expected one of stale, running, failed",
            'task:"a': "expected a &quot; at the end",
            "age:10": "expected a duration",
        }
        for text, message in mistakes.items():
            page = self.open(JOBS, q=text)
            assert unescape(message) in page.text, text
            assert "id" not in page.inputs
        assert "expected one of stale" in self.open(JOBS, state="broken").text
        for name in ("q", "state", "task", "queue"):
            for url in (JOBS, OUTCOMES):
                assert "expected" in self.open(url, **{name: "a\x00b"}).text, (url, name)
            self.open(ACTION, 302, action="retry", all="1", **{name: "a\x00b"})
            assert "expected" in self.read_messages(), name
        self.open(JOBS, 404, before="x")
        self.open(JOBS, 404, before=10**20)

    def test_choices_are_the_tasks_and_queues(self) -> None:
        add("send", queue_name="mails")
        page = self.open(JOBS, task="other")
        options = [values.get("value") for tag, values in page.tags if tag == "option"]
        for name in ("send", "mails", "failed", "other"):
            assert name in options
        add("zzz")
        with patch.object(searches, "MAX_NAMES", 1):
            assert "more: search for task:NAME" in self.open(JOBS).text

    def test_lists_neither_count_nor_sort_the_whole_queue(self) -> None:
        add()
        add_outcome(99)
        for url in (JOBS, WORKERS, OUTCOMES):
            with CaptureQueriesContext(connection) as queries:
                self.open(url, **({} if url == WORKERS else {"state": "failed"}))
            texts = [each["sql"].lower() for each in queries]
            assert any("statement_timeout" in each and "10000" in each for each in texts)
            for text in texts:
                assert "distinct" not in text
                # Workers are counted by their locks, in an index that contains no other jobs.
                is_counted = "count(*)" in text and "pg_class" not in text
                assert url == WORKERS or not is_counted, text

    def test_a_page_explains_why_a_job_does_not_run(self) -> None:
        add_worker("pypool-00000000000000000a", tasks=["other"], concurrency=5)
        cases = {
            add("send"): "No live worker handles task 'send'",
            add("other", run_at=timedelta(hours=1)): "It is scheduled: due in",
            add_failed("other"): "It failed permanently: 25 of 25 attempts",
            add_running("pypool-00000000000000000a"): "has it locked for",
        }
        for job_id, sentence in cases.items():
            assert sentence in self.open(f"{JOBS}{job_id}/change/").text

    def test_buttons_of_a_job_are_those_that_its_state_allows(self) -> None:
        add_worker("pypool-00000000000000000a")
        cases = {
            add(): {"reschedule", "fail", "complete"},
            add_failed(): {"retry", "reschedule", "complete"},
            add(run_at=timedelta(hours=1)): {"retry", "reschedule", "fail", "complete"},
            add_running("pypool-00000000000000000a"): set(),
            add_running("x", hours=5): {"unlock"},
        }
        for job_id, actions in cases.items():
            links = self.open(f"{JOBS}{job_id}/change/").links
            assert {
                each for each in ACTIONS if any(f"action={each}&" in x for x in links)
            } == actions

    def test_an_ended_job_leads_to_its_outcome(self) -> None:
        add_outcome(99)
        response = self.client.get(f"{JOBS}99/change/")
        assert response["Location"] == f"{OUTCOMES}99/change/"
        response = self.client.get(f"{JOBS}98/change/", follow=True)
        assert "Job 98 does not exist" in response.content.decode()
        response = self.client.get(f"{OUTCOMES}98/change/", follow=True)
        assert "Job 98 has no outcome" in response.content.decode()
        for url in (f"{JOBS}x/change/", f"{OUTCOMES}x/change/", f"{JOBS}{10**20}/change/"):
            self.open(url, 404)

    def test_workers_are_listed_with_their_jobs(self) -> None:
        add_worker(
            "pypool-00000000000000000a", host="web-1", pid=4242, version="1.2", concurrency=7
        )
        add_worker("pypool-00000000000000000d", seconds_ago=3600, host="web-2")
        add_running("pypool-00000000000000000a")
        add_running("pool-000000000000000000")
        page = self.open(WORKERS)
        for text in ("alive", "dead", "unknown", "web-1", "4242", "1.2", "7", "1h"):
            assert text in page.text
        [link] = [each for each in page.links if "worker%3Apypool-00000000000000000a" in each]
        assert len(Page(self.client.get(link).content.decode()).inputs["id"]) == 1

    def test_outcomes_are_listed_with_filters(self) -> None:
        add_outcome(7, result={"size": 3})
        add_outcome(8, task="mail", error=TRACEBACK)
        cases = {
            "": [7, 8],
            "state:failed": [8],
            "task:send": [7],
            "error:boom": [8],
            "finished:<1h": [7, 8],
            "id:7": [7],
        }
        for text, ids in cases.items():
            links = self.open(OUTCOMES, q=text).links
            found = sorted(int(x) for link in links for x in re.findall(r"outcome/(\d+)/", link))
            assert found == ids, text
        assert "mail" not in self.open(OUTCOMES, state="succeeded").text.partition("Finished at")[2]
        assert "for ended jobs" in self.open(OUTCOMES, q="queue:x").text
        self.open(OUTCOMES, 404, before="x")
        self.open(OUTCOMES, before="2026-08-01T10:00:00+00:00,7")
        page = self.open(f"{OUTCOMES}7/change/")
        for text in ("succeeded", '"size": 3', "w1", "1.5s", "secret frame"):
            assert text in page.text

    def test_text_of_jobs_is_escaped(self) -> None:
        job_id = add_failed(
            EVIL, EVIL + CONTROL, payload={EVIL: CONTROL}, queue_name=EVIL, job_key=EVIL
        )
        add_outcome(99, task=EVIL, error=EVIL + CONTROL, result=EVIL)
        add_running(EVIL)
        add_worker(EVIL + "2", host=EVIL, version=EVIL, tasks=[EVIL], runtime=EVIL)
        urls = [
            JOBS,
            f"{JOBS}{job_id}/change/",
            f"{ACTION}?action=retry&id={job_id}",
            f"{ACTION}?action=retry&all=1&task={EVIL}",
            f"{JOBS}?q={EVIL}",
            f"{JOBS}?state={EVIL}&task={EVIL}&queue={EVIL}",
            WORKERS,
            OUTCOMES,
            f"{OUTCOMES}99/change/",
        ]
        for url in urls:
            page = self.open(url)
            assert "<img" not in page.html, url
            assert "&lt;img" in page.html, url
            for character in "\x1b\u202e":
                assert character not in page.html, url
            for tag, values in page.tags:
                assert tag != "script" or values.get("src") or values.get("type"), (url, values)
                assert not any(name.startswith("on") or name == "style" for name in values), url
        self.change("complete", id=job_id)
        assert "<img" not in self.open("/admin/").html

    def test_long_texts_are_shortened_with_their_size(self) -> None:
        job_id = add_failed(error="E" * 300_000, payload={"text": "P" * 500_000})
        page = self.open(f"{JOBS}{job_id}/change/")
        assert "The first 20,000 of 500," in page.text
        assert "The first 20,000 of 300,000 characters." in page.text
        assert len(page.html) < 100_000
        assert len(self.open(JOBS).html) < 100_000

    def test_times_without_an_end_are_shown(self) -> None:
        job_id = add()
        run_sql("update GW._private_jobs set run_at = 'infinity'")
        self.open(JOBS)
        self.open(f"{JOBS}{job_id}/change/")
        run_sql("update GW._private_jobs set run_at = '-infinity'")
        self.open(JOBS)
        self.open(f"{JOBS}{job_id}/change/")

    def test_models_read_the_tables_of_the_setting(self) -> None:
        job_id = add("send")
        add_worker("w1")
        add_outcome(99)
        if "$" in app.schema:
            # Django's own queries reject a dollar sign. The pages use their own.
            return
        assert Job.objects.get(id=job_id).task_identifier == "send"
        assert Worker.objects.get().id == "w1"
        assert Outcome.objects.get().succeeded


class SeveralDatabases(AdminCase):
    databases = {"default", "other"}

    def test_a_parameter_chooses_the_database(self) -> None:
        self.grant_all()
        job_id = app.add_job("elsewhere", conn="other", run_at=timedelta(hours=1)).id
        assert "elsewhere" not in self.open(JOBS).text
        page = self.open(JOBS, database="other")
        assert "elsewhere" in page.text
        assert f"{JOBS}{job_id}/change/?database=other" in page.links
        page = self.open(f"{JOBS}{job_id}/change/", database="other")
        for action in ("retry", "fail"):
            query = f"action={action}&id={job_id}&from=job&database=other"
            assert f"{ACTION}?{query}" in page.links
        self.change("fail", id=job_id, database="other")
        rows = run_sql("select last_error from GW.jobs", alias="other")
        assert rows == [("not needed",)]
        for alias in ("third", "nowhere"):
            for url in (JOBS, WORKERS, OUTCOMES):
                self.open(url, 404, database=alias)
        for url in (JOBS, WORKERS, OUTCOMES):
            assert f"{url}?database=other" in self.open(url).links
