"""The pages of operations in a real browser: what operators do, question by question."""

import asyncio
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from graphile_worker import App, Retention, WorkerOptions
from graphile_worker.runner import run_once
from tests.conftest import TestDatabase
from tests.support.browser import find_violations
from tests.support.dashboard import Board, add_jobs, fail_jobs, open_dashboard, open_page
from tests.support.processes import eventually
from tests.support.sql import Sql
from tests.support.tiers import size

PHONE = {"width": 390, "height": 844}
WIDE = {"width": 1440, "height": 900}
VIEWPORTS = size(gate=[WIDE], nightly=[WIDE, PHONE])
IN_FULL = size(gate=False, nightly=True)
DEAD_WORKER = "pypool-0d5c1f77e0aa19b2c4"
NODE_WORKER = "pool-3fa9c1d2e4b5a6f708"
MARKUP = "<img src=x onerror=alert(document.title)>"

PAGES = [
    "errors",
    "queues",
    "tasks",
    "limits",
    "workers",
    "cron",
    "history",
    "enqueue",
    "audit",
    "diagnosis",
]
# One page of each kind, besides a job and a worker: numbers, a list, groups, charts and a form.
PAGES_FOR_AXE = size(
    gate=["", "jobs", "errors", "limits", "history", "enqueue"], nightly=["", "jobs", *PAGES]
)


def build_app() -> App[None]:
    app: App[None] = App(retention=Retention())

    @app.task
    def send_email(to: str, copies: int = 1) -> None:
        if to == "unknown":
            raise ValueError("no address")

    @app.cron("0 4 * * *")
    @app.task
    def send_newsletter() -> None:
        pass

    return app


APP = build_app()

# One pair of versions is enough: other tests read the same answers on both.
pytestmark = [pytest.mark.single_version, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def board(module_database: TestDatabase) -> Iterator[Board]:
    with open_dashboard(module_database, app=APP) as opened:
        yield opened


@pytest.fixture
def jobs(module_database: TestDatabase) -> Iterator[Sql]:
    """A connection to the queue, which is empty at first."""
    sql = Sql(module_database.dsn, module_database.schema)
    for table in (
        ":schema._private_jobs",
        ":schema._private_job_queues",
        ":ext_schema.pools",
        ":ext_schema.limits",
    ):
        sql.run(f"delete from {table}")
    yield sql
    sql.close()


def lock(sql: Sql, worker: str, job: int, since: str) -> None:
    """Lock a job, and its queue, as a worker does."""
    sql.run(
        "update :schema._private_jobs set locked_at = now() - $3::interval, locked_by = $1, "
        "attempts = 1 where id = $2",
        worker,
        job,
        since,
    )
    sql.run(
        "update :schema._private_job_queues set locked_at = now() - $3::interval, locked_by = $1 "
        "where id = (select job_queue_id from :schema._private_jobs where id = $2)",
        worker,
        job,
        since,
    )


def limit_task(sql: Sql, worker: str, task: str, slots: int) -> None:
    """Let a worker run a task that has a limit, all of whose slots the worker rents."""
    sql.run(
        "insert into :ext_schema.limits (name, kind, amount, app_amount) "
        "values ($1, 'concurrency', $2, $2)",
        task,
        slots,
    )
    sql.run(
        "insert into :ext_schema.slots (limit_name, slot, pool_id) "
        "select $1, number, $2 from generate_series(1, $3) as number",
        task,
        worker,
        slots,
    )
    sql.run(
        "update :ext_schema.pools set details = (details::jsonb || jsonb_build_object("
        "'tasks', jsonb_build_array($2::text), "
        "'limits', jsonb_build_object($2::text, jsonb_build_array($2::text))))::json "
        "where id = $1",
        worker,
        task,
    )


def register(sql: Sql, worker: str, since: str, version: str = "1.0.0") -> None:
    """Register a Python worker whose last heartbeat is this old. After a minute, it is dead.

    A worker that is alive stays so on a slow machine, and a server that has just started does not
    doubt that the other one is dead.
    """
    sql.run(
        "insert into :ext_schema.pools (id, started_at, seen_at, lease, details) values "
        "($1, now() - interval '1 day', now() - $2::interval, "
        "case when $2::interval < '1 min' then interval '1 hour' else '1 s' end, json_build_object("
        "'runtime', 'python', 'host', 'web-1', 'pid', 17, 'version', $3::text, 'concurrency', 10, "
        "'tasks', json_build_array('send_email')))",
        worker,
        since,
        version,
    )


def run_jobs(queue: TestDatabase) -> None:
    """Run the jobs that are ready, in a thread, because the browser has the loop of this one."""
    running = run_once(queue.dsn, APP, options=WorkerOptions(schema=queue.schema))
    with ThreadPoolExecutor() as threads:
        threads.submit(asyncio.run, running).result()


def get_row(page: Page, name: str) -> Locator:
    return page.locator("tbody tr", has=page.get_by_role("link", name=name, exact=True)).first


def get_dialog(page: Page) -> Locator:
    return page.locator("dialog[open]")


def assert_fits(page: Page) -> None:
    wide, shown = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide <= shown, page.url


def test_errors_show_what_is_failing_and_act_on_one_group(
    browser: Browser, board: Board, jobs: Sql
) -> None:
    timeouts = add_jobs(jobs, "render_pdf", 12)
    fail_jobs(jobs, timeouts, "TimeoutError: page {} took 30 s\n\nTraceback: pdf.py")
    refused = add_jobs(jobs, "send_email", 5)
    fail_jobs(jobs, refused, "SMTPError: {}@example.com refused")
    fail_jobs(jobs, add_jobs(jobs, "send_email", 2), "ValueError: no address")
    with open_page(browser, board, "errors", allowed=("status of 404",)) as page:
        groups = page.get_by_role("table", name="Groups of errors")
        expect(groups.locator("tbody tr")).to_have_count(3)
        # The group with the most jobs comes first.
        first = groups.locator("tbody tr").first
        expect(first).to_contain_text("TimeoutError")
        expect(first.locator("td").nth(2)).to_have_text("12")
        first.get_by_role("link").first.click()
        expect(page.locator("main")).to_contain_text("Traceback: pdf.py")
        page.get_by_role("button", name="Retry…").click()
        dialog = get_dialog(page)
        dialog.get_by_role("button", name="Retry 12 jobs").click()
        expect(dialog).to_contain_text("12 jobs retried.")
    retried = "select array_agg(id order by id) from :schema._private_jobs where attempts = 0"
    assert jobs.value(retried) == timeouts


def test_a_group_of_errors_opens_as_a_list_of_its_jobs(
    browser: Browser, board: Board, jobs: Sql
) -> None:
    fail_jobs(jobs, add_jobs(jobs, "render_pdf", 3), "TimeoutError: page {} took 30 s")
    fail_jobs(jobs, add_jobs(jobs, "render_pdf", 1), "MemoryError")
    with open_page(browser, board, "errors") as page:
        row = page.locator("tbody tr", has_text="TimeoutError")
        row.get_by_role("button", name="More actions").click()
        page.get_by_role("menuitem", name="Open in Jobs").click()
        expect(page).to_have_url(re.compile(r"/jobs\?q=id"))
        expect(page.locator("tbody tr")).to_have_count(3)


def test_queues_pause_for_a_time_with_a_reason_and_resume(
    browser: Browser, board: Board, jobs: Sql
) -> None:
    add_jobs(jobs, "charge_card", 4, queue_name="'billing'")
    locked = "select locked_by from :schema._private_job_queues where queue_name = 'billing'"
    with open_page(browser, board, "queues") as page:
        row = get_row(page, "billing")
        expect(row).to_contain_text("Free")
        row.get_by_role("button", name="Pause", exact=True).click()
        dialog = get_dialog(page)
        expect(dialog).to_contain_text("Workers of all runtimes")
        dialog.get_by_label("For").select_option("1 hour")
        dialog.get_by_label("Reason").fill("the bank is down")
        dialog.get_by_label("Reason").press("Enter")
        expect(row).to_contain_text("Paused")
        expect(row).to_contain_text("the bank is down")
        assert jobs.value(locked).startswith("paused:")
        # The audit names who did it, and why.
        page.goto(f"{board.url}audit")
        entry = page.locator("tbody tr").first
        expect(entry).to_contain_text("pause")
        expect(entry).to_contain_text("the bank is down")
        page.go_back()
        row.get_by_role("button", name="Resume").click()
        expect(row).to_contain_text("Free")
    assert jobs.value(locked) is None


def test_tasks_pause_for_python_workers_only(browser: Browser, board: Board, jobs: Sql) -> None:
    add_jobs(jobs, "send_email", 2)
    with open_page(browser, board, "tasks/send_email") as page:
        expect(page.locator("main")).to_contain_text("copies")
        page.get_by_role("button", name="Pause", exact=True).click()
        expect(get_dialog(page)).to_contain_text("Python workers")
        get_dialog(page).get_by_role("button", name="Pause the task").click()
        expect(page.locator(".notice")).to_contain_text("Python workers only")
        page.get_by_role("button", name="Resume").click()
        expect(page.locator(".notice")).to_have_count(0)


def test_limits_show_who_rents_their_slots_and_change_while_workers_run(
    browser: Browser, board: Board, jobs: Sql
) -> None:
    worker = "pypool-00000000000000000a"
    register(jobs, worker, "1 s")
    limit_task(jobs, worker, "resize", 2)
    *_, waiting = add_jobs(jobs, "resize", 3)
    value = "select amount from :ext_schema.limits where name = 'resize'"
    with open_page(browser, board, f"jobs/{waiting}") as page:
        # The job names what it waits for.
        expect(page.locator("main")).to_contain_text(
            f"It waits for a slot of 'resize' (2 of 2 rented by {worker})."
        )
        page.get_by_role("link", name="Limits", exact=True).click()
        row = page.locator("tbody tr", has_text="resize")
        expect(row).to_contain_text("2 of 2 in use")
        expect(row.get_by_role("link", name=worker)).to_be_visible()
        expect(row.get_by_role("link", name="3", exact=True)).to_be_visible()
        row.get_by_role("button", name="Set…").click()
        dialog = get_dialog(page)
        expect(dialog.get_by_label("Jobs at a time")).to_have_value("2")
        # The browser rejects values out of range.
        dialog.get_by_label("Jobs at a time").fill("0")
        dialog.get_by_role("button", name="Set the limit").click()
        expect(dialog).to_be_visible()
        dialog.get_by_label("Jobs at a time").fill("5")
        dialog.get_by_role("button", name="Set the limit").click()
        expect(row).to_contain_text("5 at a time")
        expect(row).to_contain_text("changed by dashboard")
        assert jobs.value(value) == 5
        row.get_by_role("button", name="Reset").click()
        expect(row).not_to_contain_text("changed by")
        assert jobs.value(value) == 2
        # A click on the number opens the jobs that wait, and the page of the task names its limit.
        row.get_by_role("link", name="3", exact=True).click()
        expect(page.locator("tbody tr")).to_have_count(3)
        page.goto(f"{board.url}tasks/resize")
        expect(page.locator(".panel", has_text="Limits")).to_contain_text("resize")


def test_a_task_without_a_worker_suggests_the_nearest_name(
    browser: Browser, board: Board, jobs: Sql
) -> None:
    register(jobs, "pypool-00000000000000000a", "1 s")
    add_jobs(jobs, "send_emaiil")
    with open_page(browser, board, "tasks") as page:
        row = get_row(page, "send_emaiil")
        expect(row).to_contain_text("Not served")
        expect(row).to_contain_text("Did you mean send_email?")


def test_workers_show_who_works_and_recover_the_jobs_of_a_dead_one(
    browser: Browser, board: Board, jobs: Sql
) -> None:
    register(jobs, "pypool-00000000000000000a", "1 s", "1.0.0")
    register(jobs, "pypool-00000000000000000b", "2 s", "1.1.0")
    register(jobs, DEAD_WORKER, "10 min")
    stuck, _ = add_jobs(jobs, "charge_card", 2, queue_name="'billing'")
    lock(jobs, DEAD_WORKER, stuck, "10 min")
    (unknown,) = add_jobs(jobs, "render_pdf")
    lock(jobs, NODE_WORKER, unknown, "1 min")
    with open_page(browser, board, "queues") as page:
        blocked = get_row(page, "billing")
        expect(blocked).to_contain_text("Blocked")
        expect(blocked).to_contain_text(DEAD_WORKER)
        page.goto(f"{board.url}workers")
        expect(page.locator("main")).to_contain_text("2 alive, 1 unknown, 1 dead")
        # A deploy that is under way shows two versions.
        expect(page.locator("main")).to_contain_text("python 1.0.0, python 1.1.0")
        dead = page.locator("tbody tr").first
        expect(dead).to_contain_text(DEAD_WORKER)
        expect(dead).to_contain_text("1 job, 1 queue")
        dead.get_by_role("button", name="Recover").click()
        get_dialog(page).get_by_role("button", name="Recover").click()
        expect(page.get_by_role("status").filter(has_text="Released")).to_have_text(
            re.compile("Released 1 job and 1 queue")
        )
        # A worker that may be alive needs its id.
        get_row(page, NODE_WORKER).get_by_role("button", name="Recover").click()
        dialog = get_dialog(page)
        expect(dialog).to_contain_text("they run twice")
        confirm = dialog.get_by_role("button", name="Recover")
        expect(confirm).to_have_attribute("aria-disabled", "true")
        dialog.get_by_label("to confirm").fill(NODE_WORKER)
        confirm.click()
        expect(dialog).to_have_count(0)
        expect(get_row(page, NODE_WORKER)).to_have_count(0)
    locks = "select count(*) from :schema._private_jobs where locked_at is not null"
    assert jobs.value(locks) == 0


def test_history_shows_what_happened_before(
    browser: Browser, board: Board, jobs: Sql, module_database: TestDatabase
) -> None:
    first, *_ = add_jobs(jobs, "send_email", 5, payload="""'{"to": "ada"}'""")
    (last,) = add_jobs(jobs, "send_email", payload="""'{"to": "unknown"}'""", max_attempts="1")
    run_jobs(module_database)
    with open_page(browser, board, "history") as page:
        expect(page.locator(".panel", has_text="Throughput").first).to_contain_text(
            "1 failed permanently"
        )
        expect(page.locator(".chart canvas")).to_have_count(2)
        # Screen readers get a table.
        page.get_by_text("Show as a table").first.click()
        table = page.get_by_role("group", name="Jobs that ended, per second")
        expect(table.locator("tbody tr").first).to_be_visible()
        ended = page.get_by_role("table", name="Jobs that ended")
        field = page.get_by_role("combobox", name="Filter")
        field.fill(f"id:{first}..{last}")
        field.press("Enter")
        expect(ended.locator("tbody tr")).to_have_count(6)
        field.fill("state:failed")
        field.press("Enter")
        expect(ended.locator("tbody tr")).to_have_count(1)
        expect(ended).to_contain_text("ValueError: no address")
        page.get_by_role("button", name="24 h").click()
        expect(page).to_have_url(re.compile("range=24h"))


def test_enqueue_points_at_a_mistake_and_adds_the_job_after_its_correction(
    browser: Browser, board: Board, jobs: Sql
) -> None:
    with open_page(browser, board, "enqueue", allowed=("status of 422",)) as page:
        payload = page.get_by_label("Payload (JSON)")
        task = page.get_by_label("Task", exact=True)
        task.fill("sendemail")
        page.get_by_role("button", name="send_email").click()
        expect(task).to_have_value("send_email")
        payload.fill('{\n  "to": "ada",\n  "copies" 2\n}')
        error = page.locator(".field .error")
        expect(error).to_contain_text("Line 3, column 12")
        page.get_by_role("button", name="Add job").click()
        expect(payload).to_be_focused()
        payload.fill('{"to": "ada", "copies": "two"}')
        expect(error).to_contain_text("copies")
        page.get_by_role("button", name="Add job").click()
        expect(payload).to_have_attribute("aria-invalid", "true")
        assert jobs.value("select count(*) from :schema._private_jobs") == 0
        payload.fill('{"to": "ada", "copies": 9007199254740993}')
        expect(page.locator("main")).to_contain_text("The payload fits")
        page.get_by_role("textbox", name="Queue").fill("mail")
        page.get_by_label("Key", exact=True).fill("mail:ada")
        page.get_by_label("If a job has this key").select_option("preserve_run_at")
        page.get_by_role("button", name="Add job").click()
        expect(page.get_by_text("Added job")).to_be_visible()
    added = jobs.run(
        "select j.payload::text, q.queue_name, j.key from :schema._private_jobs j "
        "join :schema._private_job_queues q on q.id = j.job_queue_id"
    )
    assert added == [('{"to": "ada", "copies": 9007199254740993}', "mail", "mail:ada")]


def test_enqueue_duplicates_a_job(browser: Browser, board: Board, jobs: Sql) -> None:
    (job,) = add_jobs(
        jobs, "send_email", payload="""'{"to": "ada"}'""", queue_name="'mail'", priority="3"
    )
    with open_page(browser, board, f"enqueue?from={job}") as page:
        expect(page.get_by_label("Payload (JSON)")).to_have_value('{\n  "to": "ada"\n}')
        expect(page.get_by_role("textbox", name="Queue")).to_have_value("mail")
        expect(page.get_by_label("Priority")).to_have_value("3")
        page.get_by_role("button", name="Add job").click()
        expect(page.get_by_text("Added job")).to_be_visible()
    assert jobs.value("select count(*) from :schema._private_jobs where priority = 3") == 2


def test_cron_items_run_now(browser: Browser, board: Board, jobs: Sql) -> None:
    with open_page(browser, board, "cron") as page:
        row = page.locator("tbody tr", has_text="send_newsletter")
        expect(row).to_contain_text("04:00")
        row.get_by_role("button", name="Run now").click()
        expect(page.get_by_role("status").filter(has_text="Added job")).to_be_visible()
    assert jobs.value("select count(*) from :schema._private_jobs") == 1


@pytest.mark.nightly
def test_pages_of_operations_fit_a_phone_and_work_by_touch(
    browser: Browser, board: Board, jobs: Sql
) -> None:
    fill_with_trouble(jobs)
    with open_page(browser, board, "queues", viewport=PHONE, has_touch=True) as page:
        get_row(page, "mail").get_by_role("button", name="Pause", exact=True).tap()
        get_dialog(page).get_by_role("button", name="Pause the queue").tap()
        expect(get_row(page, "mail")).to_contain_text("Paused")
        for path in PAGES:
            page.goto(f"{board.url}{path}")
            page.locator("#main h1").wait_for()
            expect(page.locator("main .loading")).to_have_count(0)
            assert_fits(page)


def test_users_without_permissions_see_buttons_and_why_they_do_nothing(
    browser: Browser, module_database: TestDatabase, jobs: Sql
) -> None:
    fill_with_trouble(jobs)
    before = jobs.value("select count(*) from :ext_schema.audit")
    buttons = {
        "errors": "Retry…",
        "queues": "Pause",
        "tasks": "Pause",
        "limits": "Set…",
        "workers": "Recover",
        "cron": "Run now",
        "enqueue": "Add job",
    }
    if not IN_FULL:
        # A dialog, a button of a row, and a form.
        buttons = {path: buttons[path] for path in ("errors", "queues", "limits", "enqueue")}
    with (
        open_dashboard(module_database, app=APP, role="read-only") as board,
        open_page(browser, board) as page,
    ):
        for path, name in buttons.items():
            page.goto(f"{board.url}{path}")
            button = page.locator("main").get_by_role("button", name=name).first
            expect(button).to_have_attribute("aria-disabled", "true")
            button.click(force=True)
            expect(page.locator(".toast").first).to_contain_text("permission")
            expect(get_dialog(page)).to_have_count(0)
    assert jobs.value("select count(*) from :ext_schema.audit") == before


@pytest.mark.nightly
def test_pages_of_operations_show_names_and_errors_as_text(
    browser: Browser, board: Board, jobs: Sql
) -> None:
    (job,) = add_jobs(jobs, MARKUP, queue_name=f"'{MARKUP}'")
    fail_jobs(jobs, add_jobs(jobs, "render_pdf"), MARKUP)
    lock(jobs, MARKUP, job, "1 min")
    with open_page(browser, board) as page:
        for path in ("errors", "queues", "tasks", "workers"):
            page.goto(f"{board.url}{path}")
            expect(page.locator("main tbody")).to_contain_text(MARKUP)
            assert page.locator("main img").count() == 0


def fill_with_trouble(sql: Sql) -> None:
    """Fill the queue with what pages show: errors, locks, pauses, and jobs in each state."""
    register(sql, "pypool-00000000000000000a", "1 s")
    limit_task(sql, "pypool-00000000000000000a", "send_email", 4)
    register(sql, DEAD_WORKER, "10 min")
    stuck, *_ = add_jobs(sql, "charge_card", 3, queue_name="'billing'")
    lock(sql, DEAD_WORKER, stuck, "10 min")
    add_jobs(sql, "send_email", 2, queue_name="'mail'")
    add_jobs(sql, "send_email", 2, run_at="now() + interval '1 day'")
    (unknown,) = add_jobs(sql, "render_pdf")
    lock(sql, NODE_WORKER, unknown, "1 min")
    fail_jobs(sql, add_jobs(sql, "render_pdf", 3), "TimeoutError: page {} took 30 s")


def test_axe_finds_no_violations_on_any_page_in_both_themes(
    browser: Browser, board: Board, jobs: Sql, module_database: TestDatabase
) -> None:
    add_jobs(jobs, "send_email", payload="""'{"to": "ada"}'""")
    run_jobs(module_database)
    fill_with_trouble(jobs)
    failed = jobs.value("select max(id) from :schema._private_jobs")
    caller = board.sign_in()

    def find_group() -> str | None:
        # For some seconds, the dashboard has the groups of an earlier test.
        groups = caller.get("errors")["groups"]
        return next((each["fingerprint"] for each in groups if each["jobs"] == 3), None)

    group = eventually(find_group, "the errors of this test are listed")
    more = [f"jobs/{failed}", f"workers/{DEAD_WORKER}"]
    if IN_FULL:
        more += [f"errors/{group}", "tasks/send_email"]
    violations = []
    for viewport in VIEWPORTS:
        with open_page(browser, board, viewport=viewport) as page:
            for path in [*PAGES_FOR_AXE, *more]:
                page.goto(f"{board.url}{path}")
                page.locator("#main h1").wait_for()
                expect(page.locator("main .loading")).to_have_count(0)
                violations += find_violations(page)
                page.emulate_media(color_scheme="dark")
                # Only colors depend on the theme.
                violations += find_violations(page, runOnly=["color-contrast"])
                page.emulate_media(color_scheme="light")
    assert violations == []
