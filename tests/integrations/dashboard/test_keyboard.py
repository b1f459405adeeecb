"""Every action by keyboard, in a real browser: Tab, Enter, Space, arrows and shortcuts only."""

import re

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from graphile_worker import App
from tests.conftest import TestDatabase
from tests.support.dashboard import add_jobs, fail_jobs, open_dashboard, open_page
from tests.support.sql import Sql

pytestmark = [pytest.mark.single_version, pytest.mark.timeout(600)]

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
        self.write(text)
        self.press("Enter", "Escape")
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


def test_each_action_works_by_keyboard_alone(
    browser: Browser, database: TestDatabase, sql: Sql
) -> None:
    to_retry, to_fail, to_reschedule, to_delete = fill(sql)
    with (
        open_dashboard(database, app=app) as board,
        open_page(browser, board, allowed=("status of 404",)) as page,
    ):
        keyboard = Keyboard(page)

        keyboard.open_job(to_retry)
        keyboard.press("r")
        keyboard.close("1 job retried.")

        keyboard.open_job(to_fail)
        keyboard.choose("Fail permanently…", "Space")
        keyboard.tab_to("Reason")
        keyboard.write("not wanted")
        keyboard.press("Enter")
        keyboard.confirm("1 job")

        keyboard.open_job(to_reschedule)
        keyboard.tab_to("Reschedule…")
        keyboard.press("Enter")
        keyboard.tab_to("Run")
        keyboard.press("ArrowDown")
        keyboard.tab_to("Preview")
        keyboard.press("Enter")
        keyboard.confirm("1 job rescheduled.")

        keyboard.open_job(to_delete)
        keyboard.choose("Delete…", "Enter")
        keyboard.confirm("1 job deleted.")

        keyboard.find_jobs("task:render_pdf", 50)
        keyboard.press("a")
        expect(page.get_by_role("button", name="Select all 60 matching")).to_be_visible()
        keyboard.tab_to("Select all 60 matching", "Shift+Tab")
        keyboard.press("Space")
        expect(page.locator(".selection")).to_contain_text("All 60 matching jobs selected")
        keyboard.tab_to("Retry…")
        keyboard.press("Space")
        keyboard.confirm("60 jobs retried.")

        keyboard.go_to("q", "Queues")
        row = page.locator("tbody tr", has_text="billing")
        keyboard.tab_to("Pause")
        keyboard.press("Enter")
        keyboard.tab_to("For")
        # The choice before the default, which is last: 1 day.
        keyboard.press("ArrowUp")
        keyboard.tab_to("Reason (optional)")
        keyboard.write("the bank is down")
        keyboard.press("Enter")
        expect(row).to_contain_text("the bank is down")
        expect(row).not_to_contain_text("until resumed")
        keyboard.tab_to("Resume")
        keyboard.press("Space")
        expect(row).to_contain_text("Free")

        keyboard.go_to("w", "Workers")
        keyboard.tab_to("Recover…")
        keyboard.press("Enter")
        keyboard.press_last(DEAD_WORKER)
        expect(page.locator(".toast", has_text="Released 1 job")).to_be_visible()

        keyboard.go_to("c", "Cron")
        keyboard.tab_to("Run now")
        keyboard.press("Space")
        expect(page.locator(".toast", has_text="Added job")).to_be_visible()

        keyboard.go_to("n", "Enqueue")
        keyboard.tab_to("Task")
        keyboard.write("send_newsletter")
        keyboard.tab_to("Payload (JSON)")
        keyboard.write('{"issue": 7}')
        keyboard.tab_to("Add job")
        keyboard.press("Enter")
        expect(page.locator("main")).to_contain_text(re.compile(r"Added job \d+"))

    retried = (
        "select count(*) from :schema._private_jobs where attempts = 0 and last_error ~ 'Error:'"
    )
    assert sql.value(retried) == 61
    failed = sql.run("select id, last_error from :schema._private_jobs where attempts = 25")
    assert failed == [(to_fail, "not wanted")]
    soon = "select run_at < now() + interval '1 hour' from :schema._private_jobs where id = $1"
    assert sql.value(soon, to_reschedule)
    assert sql.run("select id from :schema._private_jobs where id = $1", to_delete) == []
    assert sql.value("select count(*) from :schema._private_jobs where locked_at is not null") == 0
    added = (
        "select count(*) from :schema._private_jobs as jobs join :schema._private_tasks as tasks "
        "on tasks.id = jobs.task_id where tasks.identifier = 'send_newsletter'"
    )
    assert sql.value(added) == 2
