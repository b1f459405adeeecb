"""Every action by keyboard, in a real browser: Tab, Enter, Space, arrows and shortcuts only."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from graphile_worker import App
from tests.conftest import TestDatabase
from tests.support.dashboard import add_jobs, fail_jobs, open_dashboard, open_page
from tests.support.sql import Sql

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

MAX_TABS = 100
DEAD_WORKER = "pypool-0d5c1f77e0aa19b2c4"

READ_FOCUS = """
() => {
  const { ariaLabel, labels, innerText } = document.activeElement;
  return (ariaLabel ?? labels?.[0]?.innerText ?? innerText ?? "").trim();
}
"""

app: App[None] = App()


@app.cron("0 4 * * *")
@app.task
def send_newsletter(issue: int = 1) -> None:
    pass


class Keyboard:
    """Operates a page by keys alone."""

    def __init__(self, page: Page) -> None:
        self._page = page

    def press(self, *keys: str) -> None:
        for key in keys:
            self._page.keyboard.press(key)

    def write(self, text: str) -> None:
        """Replace the text of the field that has the focus."""
        self.press("Control+a")
        self._page.keyboard.type(text)

    def tab_to(self, name: str, key: str = "Tab") -> None:
        """Press Tab until an element with this name has the focus."""
        seen = []
        for _ in range(MAX_TABS):
            seen.append(self._page.evaluate(READ_FOCUS))
            if seen[-1] == name:
                return
            self.press(key)
        raise AssertionError(f"Tab does not reach {name!r}: {seen}")

    def go_to(self, key: str, title: str) -> None:
        """Open a page by its shortcut."""
        self.press("g", key)
        expect(self._page.locator("h1")).to_have_text(title)

    def find_jobs(self, text: str, count: int) -> None:
        """Filter the jobs, and leave the field."""
        self.go_to("j", "Jobs")
        self.press("/")
        field = self._page.get_by_role("combobox", name="Filter")
        expect(field).to_be_focused()
        self.write(text)
        expect(field).to_have_value(text)
        self.press("Enter", "Escape")
        expect(self._page).to_have_url(re.compile(f"q={re.escape(quote_plus(text))}(&|$)"))
        expect(self._page.locator("tbody tr")).to_have_count(count)

    def open_job(self, id: int) -> None:
        self.find_jobs(f"id:{id}", 1)
        self.press("j", "Enter")
        expect(self._page.locator("h1")).to_contain_text(f"#{id}")

    def choose(self, item: str, key: str) -> None:
        """Open the menu of a job, and choose an item with the arrows."""
        self.tab_to("More")
        self.press(key)
        expect(self._page.get_by_role("menuitem").first).to_be_focused()
        self.tab_to(item, "ArrowDown")
        self.press(key)
        expect(self.get_dialog()).to_be_visible()

    def confirm(self, result: str) -> None:
        """Press Enter on the button that confirms, and again to close the dialog."""
        self.press_last("This changes")
        self.close(result)

    def close(self, result: str) -> None:
        self.press_last(result)
        expect(self.get_dialog()).to_have_count(0)

    def press_last(self, text: str) -> None:
        """Press Enter when the dialog shows a text and its last button has the focus."""
        dialog = self.get_dialog()
        expect(dialog).to_contain_text(text)
        expect(dialog.locator(".dialog-foot button").last).to_be_focused()
        self.press("Enter")

    def get_dialog(self) -> Locator:
        return self._page.locator("dialog[open]")


def fill(sql: Sql) -> list[int]:
    """Add what the actions change. Return one failed job and three scheduled ones."""
    failed = add_jobs(sql, "send_email")
    fail_jobs(sql, failed, "ValueError: no address")
    scheduled = add_jobs(sql, "send_email", 3, run_at="now() + interval '1 day'")
    fail_jobs(sql, add_jobs(sql, "render_pdf", 60), "TimeoutError: upstream")
    add_jobs(sql, "charge_card", queue_name="'billing'")
    (stuck,) = add_jobs(sql, "charge_card")
    sql.run(
        "insert into :ext_schema.pools (id, started_at, seen_at, lease, details) "
        "values ($1, now(), now() - interval '1 hour', '1 s', '{\"runtime\": \"python\"}')",
        DEAD_WORKER,
    )
    sql.run(
        "update :schema._private_jobs set locked_at = now(), locked_by = $1 where id = $2",
        DEAD_WORKER,
        stuck,
    )
    return failed + scheduled


@dataclass
class Dashboard:
    """The page, the keys that operate it, and the jobs that each action has for itself."""

    page: Page
    keyboard: Keyboard
    sql: Sql
    to_retry: int
    to_fail: int
    to_reschedule: int
    to_delete: int

    def row_of(self, job: int) -> list[tuple[Any, ...]]:
        return self.sql.run(
            "select attempts, last_error, run_at < now() + interval '1 hour' "
            "from :schema._private_jobs where id = $1",
            job,
        )

    def count(self, condition: str) -> Any:
        return self.sql.value(
            "select count(*) from :schema._private_jobs as jobs "
            "join :schema._private_tasks as tasks on tasks.id = jobs.task_id "
            f"where {condition}"
        )


def retry_a_job(it: Dashboard) -> None:
    it.keyboard.open_job(it.to_retry)
    it.keyboard.press("r")
    it.keyboard.close("1 job retried.")
    [(attempts, error, _)] = it.row_of(it.to_retry)
    assert (attempts, error) == (0, "ValueError: no address")


def fail_a_job(it: Dashboard) -> None:
    it.keyboard.open_job(it.to_fail)
    it.keyboard.choose("Fail permanently…", "Space")
    it.keyboard.tab_to("Reason")
    it.keyboard.write("not wanted")
    it.keyboard.press("Enter")
    it.keyboard.confirm("1 job")
    [(attempts, error, _)] = it.row_of(it.to_fail)
    assert (attempts, error) == (25, "not wanted")
    assert it.count("last_error = 'not wanted'") == 1


def reschedule_a_job(it: Dashboard) -> None:
    it.keyboard.open_job(it.to_reschedule)
    it.keyboard.tab_to("Reschedule…")
    it.keyboard.press("Enter")
    it.keyboard.tab_to("Run")
    it.keyboard.press("ArrowDown")
    it.keyboard.tab_to("Preview")
    it.keyboard.press("Enter")
    it.keyboard.confirm("1 job rescheduled.")
    [(_, _, is_soon)] = it.row_of(it.to_reschedule)
    assert is_soon


def delete_a_job(it: Dashboard) -> None:
    it.keyboard.open_job(it.to_delete)
    it.keyboard.choose("Delete…", "Enter")
    it.keyboard.confirm("1 job deleted.")
    assert it.row_of(it.to_delete) == []


def retry_all_that_match(it: Dashboard) -> None:
    it.keyboard.find_jobs("task:render_pdf", 50)
    it.keyboard.press("a")
    expect(it.page.get_by_role("button", name="Select all 60 matching")).to_be_visible()
    it.keyboard.tab_to("Select all 60 matching", "Shift+Tab")
    it.keyboard.press("Space")
    expect(it.page.locator(".selection")).to_contain_text("All 60 matching jobs selected")
    expect(it.page.get_by_role("button", name="Clear", exact=True)).to_be_focused()
    it.keyboard.tab_to("Retry…")
    it.keyboard.press("Space")
    it.keyboard.confirm("60 jobs retried.")
    assert it.count("identifier = 'render_pdf' and attempts = 0 and last_error ~ 'Error:'") == 60


def pause_and_resume_a_queue(it: Dashboard) -> None:
    it.keyboard.go_to("q", "Queues")
    row = it.page.locator("tbody tr", has_text="billing")
    it.keyboard.tab_to("Pause")
    it.keyboard.press("Enter")
    it.keyboard.tab_to("For")
    # The choice before the default, which is last: 1 day.
    it.keyboard.press("ArrowUp")
    it.keyboard.tab_to("Reason (optional)")
    it.keyboard.write("the bank is down")
    it.keyboard.press("Enter")
    expect(row).to_contain_text("the bank is down")
    expect(row).not_to_contain_text("until resumed")
    it.keyboard.tab_to("Resume")
    it.keyboard.press("Space")
    expect(row).to_contain_text("Free")


def recover_a_worker(it: Dashboard) -> None:
    it.keyboard.go_to("w", "Workers")
    it.keyboard.tab_to("Recover…")
    it.keyboard.press("Enter")
    it.keyboard.press_last(DEAD_WORKER)
    expect(it.page.locator(".toast", has_text="Released 1 job")).to_be_visible()
    assert it.count("locked_at is not null") == 0


def run_a_cron_item(it: Dashboard) -> None:
    it.keyboard.go_to("c", "Cron")
    it.keyboard.tab_to("Run now")
    it.keyboard.press("Space")
    expect(it.page.locator(".toast", has_text="Added job")).to_be_visible()
    assert it.count("identifier = 'send_newsletter'") == 1


def enqueue_a_job(it: Dashboard) -> None:
    before = it.count("identifier = 'send_newsletter'")
    it.keyboard.go_to("n", "Enqueue")
    it.keyboard.tab_to("Task")
    it.keyboard.write("send_newsletter")
    it.keyboard.tab_to("Payload (JSON)")
    it.keyboard.write('{"issue": 7}')
    it.keyboard.tab_to("Add job")
    it.keyboard.press("Enter")
    expect(it.page.locator("main")).to_contain_text(re.compile(r"Added job \d+"))
    assert it.count("identifier = 'send_newsletter'") == before + 1


ACTIONS: list[Callable[[Dashboard], None]] = [
    retry_a_job,
    fail_a_job,
    reschedule_a_job,
    delete_a_job,
    retry_all_that_match,
    pause_and_resume_a_queue,
    recover_a_worker,
    run_a_cron_item,
    enqueue_a_job,
]


def test_each_action_works_by_keyboard_alone(
    browser: Browser, database: TestDatabase, sql: Sql
) -> None:
    jobs = fill(sql)
    with (
        open_dashboard(database, app=app) as board,
        open_page(browser, board, allowed=("status of 404",)) as page,
    ):
        dashboard = Dashboard(page, Keyboard(page), sql, *jobs)
        for act in ACTIONS:
            act(dashboard)
