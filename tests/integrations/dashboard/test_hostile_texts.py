"""Hostile texts on every page, in a real browser: they are shown as text, and nothing runs."""

from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Dialog, Page, expect

from tests.conftest import TestDatabase
from tests.support.dashboard import open_dashboard, open_page
from tests.support.markup import MARKUP
from tests.support.processes import eventually
from tests.support.sql import Sql
from tests.support.tiers import size

pytestmark = [pytest.mark.single_version, pytest.mark.timeout(300)]

IN_FULL = size(gate=False, nightly=True)

# Every place that holds a text of users or programs, once for each text. One third of the jobs
# failed, one third is locked, one third is ready.
FILL = [
    """
    insert into :schema._private_tasks (identifier) select unnest($1::text[])
    """,
    """
    insert into :schema._private_job_queues (queue_name, locked_at, locked_by)
    select
      text,
      case when number % 3 > 0 then now() end,
      case number % 3 when 1 then text when 2 then 'paused:' || text end
    from unnest($1::text[]) with ordinality as texts (text, number)
    """,
    """
    insert into :schema._private_jobs
      (task_id, job_queue_id, key, payload, last_error, flags, attempts, locked_at, locked_by)
    select
      tasks.id, queues.id, text, json_build_object(text, text), text || e'\\n' || text,
      jsonb_build_object(text, true), case number % 3 when 0 then 25 else 2 end,
      case when number % 3 = 1 then now() end, case when number % 3 = 1 then text end
    from unnest($1::text[]) with ordinality as texts (text, number)
    join :schema._private_tasks as tasks on tasks.identifier = text
    join :schema._private_job_queues as queues on queues.queue_name = text
    """,
    """
    insert into :schema._private_known_crontabs (identifier, known_since, last_execution)
    select unnest($1::text[]), now(), now()
    """,
    """
    insert into :ext_schema.pools (id, started_at, seen_at, lease, details)
    select
      text, now(), now(), interval '1 hour',
      json_build_object(
        'runtime', text, 'host', text, 'pid', 1, 'version', text, 'concurrency', 1,
        'tasks', json_build_array(text)
      )
    from unnest($1::text[]) as text
    """,
    """
    insert into :ext_schema.pauses (kind, name, paused_by, reason)
    select kind, text, text, text
    from unnest($1::text[]) as text, unnest(array['task', 'queue']) as kind
    """,
    """
    insert into :ext_schema.limits (name, kind, amount, app_amount, set_by, set_at)
    select text, 'concurrency', 2, 1, text, now() from unnest($1::text[]) as text
    """,
    """
    insert into :ext_schema.audit (actor, role, action, filter, note, job_ids, count)
    select text, text, text, text, text, '{1}', 1 from unnest($1::text[]) as text
    """,
    """
    insert into :ext_schema.outcomes (
      slot, job_id, task_identifier, succeeded, attempts, created_at, run_at, started_at,
      finished_at, pool_id, has_result, result, payload, error
    )
    select
      slot, number, text, number % 2 = 0, 1, now(), now(), now(), now(), text, true,
      to_json(text), to_json(text), text
    from :ext_schema.history, unnest($1::text[]) with ordinality as texts (text, number)
    """,
    """
    insert into :ext_schema.attempts
      (slot, job_id, attempt, started_at, duration, pool_id, error, error_class)
    select slot, jobs.id, 1, now(), 1, jobs.key, jobs.key, jobs.key
    from :ext_schema.history, :schema._private_jobs as jobs
    where $1::text[] is not null
    """,
    """
    insert into :ext_schema.progress (job_id, pool_id, fraction, message, updated_at)
    select id, locked_by, 0.5, key, now() from :schema._private_jobs
    where locked_by is not null and $1::text[] is not null
    """,
]

# What a page would contain if a text were markup: other elements, handlers, addresses that run.
FIND_MARKUP = """
() => [...document.querySelectorAll("#main *, dialog *, .toast *")].filter((each) =>
  /^(script|img|iframe|object|embed|base|link|meta|style|video|math)$/.test(each.localName)
  || each.getAttributeNames().some((name) => name.startsWith("on"))
  || /^(javascript|data):/i.test(each.protocol ?? "") || each.hasAttribute("srcdoc")
).map((each) => each.outerHTML.slice(0, 200))
"""
FIND_TEXTS = """
(texts) => texts.filter((each) => document.getElementById("main").textContent.includes(each))
"""


def look(page: Page, path: str, at_least: int) -> None:
    """Check that a page shows this number of the texts, as text."""

    def find_texts() -> bool:
        return len(page.evaluate(FIND_TEXTS, MARKUP)) >= at_least

    page.locator("#main h1, #main .empty h2").first.wait_for()
    eventually(find_texts, f"{path} shows {at_least} texts")
    expect(page.locator("main .loading")).to_have_count(0)
    assert page.evaluate(FIND_MARKUP) == [], path


def test_each_page_shows_hostile_texts_as_text(
    browser: Browser, database: TestDatabase, sql: Sql
) -> None:
    for statement in FILL:
        sql.run(statement, MARKUP)
    large = sql.value(
        "update :schema._private_jobs set last_error = repeat($1, 10000), "
        "payload = json_build_object('text', repeat($1, 10000)) "
        "where id = (select max(id) from :schema._private_jobs) returning id",
        MARKUP[6].ljust(100),
    )
    (locked, failed, ready) = sql.run("select id from :schema._private_jobs order by id limit 3")
    dialogs: list[str] = []

    def note(dialog: Dialog) -> None:
        dialogs.append(dialog.message)
        dialog.dismiss()

    with open_dashboard(database) as board, open_page(browser, board) as page:
        page.on("dialog", note)
        caller = board.sign_in()
        group = caller.get("errors")["groups"][0]["fingerprint"]
        first = quote(MARKUP[0], safe="")
        pages = {
            "": 1,
            "jobs": 50,
            f"jobs/{locked[0]}": 1,
            f"jobs/{failed[0]}": 1,
            f"jobs/{large}": 1,
            "errors": 10,
            f"errors/{group}": 1,
            "queues": 60,
            "tasks": 60,
            f"tasks/{first}": 1,
            "limits": 60,
            "workers": 60,
            f"workers/{first}": 1,
            "cron": 60,
            "history": 50,
            f"enqueue?from={ready[0]}": 0,
            "audit": 50,
            "diagnosis": 1,
        }
        typical = ("", "jobs", f"jobs/{failed[0]}", "errors", "workers")
        for path in pages if IN_FULL else typical:
            page.goto(f"{board.url}{path}")
            look(page, path, pages[path])
        # Questions and messages name what they are about.
        page.goto(f"{board.url}queues")
        page.get_by_role("button", name="Resume").first.click()
        expect(page.locator(".toast").first).to_contain_text("resumed")
        page.get_by_role("button", name="Pause", exact=True).first.click()
        expect(page.locator("dialog[open]")).to_contain_text("Pause the queue")
        assert page.evaluate(FIND_MARKUP) == []
    assert dialogs == []
