"""The pages Overview, Jobs and Job in a real browser: what operators do, question by question."""

import re
from collections.abc import Iterator

import psycopg
import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from psycopg import sql

from tests.conftest import TestDatabase
from tests.support.browser import find_violations
from tests.support.dashboard import TOKEN, Board, add_jobs, fail_jobs, open_dashboard, open_page
from tests.support.sql import Sql

PHONE = {"width": 390, "height": 844}
NODE_WORKER = "pool-3fa9c1d2e4b5a6f708"

# The answer to a filter that cannot be read.
BAD_REQUEST = "status of 400"
NOT_FOUND = "status of 404"


# One pair of versions is enough: other tests read the same answers on both.
pytestmark = [pytest.mark.single_version, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def board(module_database: TestDatabase) -> Iterator[Board]:
    with open_dashboard(module_database, environment="production") as opened:
        yield opened


@pytest.fixture
def jobs(module_database: TestDatabase) -> Iterator[Sql]:
    """A connection to the queue, which is empty at first."""
    connection = Sql(module_database.dsn, module_database.schema)
    for table in ("jobs", "job_queues", "tasks"):
        connection.run(f"delete from :schema._private_{table}")
    yield connection
    connection.close()


def lock_queue(jobs: Sql, queue: str, job: int, hours: int) -> None:
    """Lock a named queue and a job of it as a worker of Node that died."""
    since = f"now() - interval '{hours} hours'"
    jobs.run(
        f"update :schema._private_job_queues set locked_at = {since}, locked_by = $1 "
        "where queue_name = $2",
        NODE_WORKER,
        queue,
    )
    jobs.run(
        f"update :schema._private_jobs set locked_at = {since}, locked_by = $1, attempts = 1 "
        "where id = $2",
        NODE_WORKER,
        job,
    )


def get_stat(page: Page, label: str) -> Locator:
    return page.locator(".stat", has=page.get_by_text(label, exact=True))


def get_row(page: Page, job: int) -> Locator:
    return page.locator("tbody tr", has=page.get_by_role("link", name=str(job), exact=True))


def get_dialog(page: Page) -> Locator:
    return page.locator("dialog[open]")


def set_filter(page: Page, text: str) -> None:
    field = page.get_by_role("combobox", name="Filter")
    field.fill(text)
    field.press("Enter")


def assert_fits(page: Page) -> None:
    width = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert width[0] <= width[1]


def test_overview_shows_whether_work_flows_and_since_when_not(
    browser: Browser, board: Board, jobs: Sql
) -> None:
    add_jobs(jobs, "send_email", 3, run_at="now() - interval '6 minutes'")
    add_jobs(jobs, "render_pdf", 2)
    with open_page(browser, board) as page:
        oldest = get_stat(page, "Oldest ready job")
        expect(oldest).to_contain_text(re.compile(r"6m\d+s"))
        expect(oldest).to_contain_text("send_email")
        expect(page.locator("h1")).not_to_have_text("")
        # The verdict comes first, then what is wrong, with what to do.
        expect(page.locator(".alert").first).to_contain_text("worker")
        tasks = page.get_by_role("table", name="Jobs by task")
        expect(tasks.locator("tbody tr").first).to_contain_text("send_email")
        oldest.click()
        expect(page).to_have_url(re.compile(r"/jobs\?q=task"))
        expect(page.locator("tbody tr")).to_have_count(3)


def test_pages_say_why_a_queue_is_stuck(browser: Browser, board: Board, jobs: Sql) -> None:
    holder, *waiting = add_jobs(jobs, "charge_card", 20, queue_name="'billing'")
    lock_queue(jobs, "billing", holder, hours=5)
    with open_page(browser, board) as page:
        alert = page.locator(".alert", has_text="billing").first
        expect(alert).to_contain_text(NODE_WORKER)
        page.goto(f"{board.url}jobs?state=waiting")
        expect(page.locator("tbody tr")).to_have_count(len(waiting))
        # The state of a tab is in the URL, and its count is beside it.
        expect(page.locator(".chip[aria-pressed=true]")).to_contain_text("19")
        page.get_by_role("link", name=str(waiting[-1])).click()
        expect(page.locator("main")).to_contain_text(f"is locked by job {holder}")
        expect(page.locator("main")).to_contain_text(NODE_WORKER)
        page.goto(f"{board.url}jobs/{holder}")
        page.get_by_role("button", name="Release…").click()
        get_dialog(page).get_by_role("button", name="Release 1 job").click()
        expect(get_dialog(page)).to_contain_text("1 job released.")
    assert jobs.value("select locked_at from :schema._private_jobs where id = $1", holder) is None


def test_bulk_retry_runs_ten_first_and_then_all_that_match(
    browser: Browser, board: Board, jobs: Sql
) -> None:
    broken = add_jobs(jobs, "render_pdf", 1200)
    fail_jobs(jobs, broken, "TimeoutError: upstream")
    others = add_jobs(jobs, "send_email", 5)
    fail_jobs(jobs, others, "ValueError: no address")
    retried = "select count(*) from :schema._private_jobs where attempts = 0"
    with open_page(browser, board, "jobs?q=error:upstream") as page:
        expect(page.locator("tbody tr")).to_have_count(50)
        page.get_by_label("Select all on this page").click()
        page.get_by_role("button", name="Select all 1,200 matching").click()
        expect(page.locator(".selection")).to_contain_text("All 1,200 matching jobs selected")
        page.get_by_role("button", name="Retry…").click()
        dialog = get_dialog(page)
        expect(dialog).to_contain_text("This changes 1,200 jobs.")
        dialog.get_by_role("button", name="10 first").click()
        expect(dialog).to_contain_text("10 jobs retried.")
        assert jobs.value(retried) == 10
        # The dialog shows what becomes of them.
        expect(dialog).to_contain_text("Ready 10")
        expect(dialog).to_contain_text("Failed 1,190")
        # A worker takes one of the others before the rest.
        jobs.run(
            "update :schema._private_jobs set locked_at = now(), locked_by = 'w' where id = $1",
            broken[-1],
        )
        dialog.get_by_role("button", name="Continue with the others").click()
        # Above 100 jobs, production asks for the number.
        confirm = dialog.get_by_role("button", name="Retry 1,189 jobs")
        expect(confirm).to_have_attribute("aria-disabled", "true")
        dialog.get_by_label("This is production").fill("1189")
        dialog.get_by_label("This is production").press("Enter")
        expect(dialog).to_contain_text("1,189 jobs retried.")
        expect(dialog).to_contain_text("1 job skipped: a worker has locked it.")
        dialog.get_by_role("button", name="Close").last.click()
        page.get_by_role("button", name=re.compile("^Failed")).click()
        expect(page.locator("main")).to_contain_text("No failed jobs match")
    assert jobs.value(retried) == 1199
    actors = jobs.run("select distinct actor from :ext_schema.audit where action = 'jobs.retry'")
    assert len(actors) <= 1


def test_delete_needs_a_confirmation_and_escape_cancels(
    browser: Browser, board: Board, jobs: Sql
) -> None:
    (job,) = add_jobs(jobs, "send_email", run_at="now() + interval '1 hour'")
    with open_page(browser, board, f"jobs/{job}", allowed=(NOT_FOUND,)) as page:
        menu = page.get_by_role("button", name="More")
        menu.click()
        page.get_by_role("menuitem", name="Delete…").click()
        expect(get_dialog(page)).to_contain_text("You cannot undo this.")
        page.keyboard.press("Escape")
        expect(get_dialog(page)).to_have_count(0)
        expect(menu).to_be_focused()
        assert jobs.value("select count(*) from :schema._private_jobs") == 1
        menu.click()
        page.get_by_role("menuitem", name="Delete…").click()
        get_dialog(page).get_by_role("button", name="Delete 1 job").click()
        expect(get_dialog(page)).to_contain_text("1 job deleted.")
    assert jobs.value("select count(*) from :schema._private_jobs") == 0


def test_filter_finds_the_job_of_one_customer(browser: Browser, board: Board, jobs: Sql) -> None:
    add_jobs(jobs, "send_email", 30, payload="json_build_object('user_id', 7)")
    (wanted,) = add_jobs(jobs, "send_email", payload="""'{"user_id": 42, "token": "secret-1"}'""")
    with open_page(browser, board, "jobs", allowed=(BAD_REQUEST,)) as page:
        expect(page.locator("tbody tr")).to_have_count(31)
        set_filter(page, "payload.user_id:42")
        expect(page.locator("tbody tr")).to_have_count(1)
        # A filter that cannot be read leaves the last results, and says what is wrong.
        set_filter(page, "age:>banana")
        expect(page.locator("#filter-error")).to_contain_text("expected a duration")
        expect(page.locator("tbody tr")).to_have_count(1)
        page.go_back()
        expect(page.get_by_role("combobox", name="Filter")).to_have_value("payload.user_id:42")
        expect(page.locator("#filter-error")).to_have_text("")
        page.get_by_role("link", name=str(wanted)).click()
        expect(page.get_by_role("region", name="Payload as JSON")).to_contain_text("42")
        expect(page.locator("main")).not_to_contain_text("secret-1")
        page.get_by_role("button", name="Reveal masked values").click()
        expect(page.locator("main")).to_contain_text("secret-1")
        # Back and Forward show the same views.
        page.go_back()
        expect(page.locator("tbody tr")).to_have_count(1)
        page.go_forward()
        expect(page.locator("h1")).to_contain_text(f"#{wanted}")


def test_filter_completes_fields_names_and_states(
    browser: Browser, board: Board, jobs: Sql
) -> None:
    add_jobs(jobs, "send_email", 2)
    add_jobs(jobs, "render_pdf")
    # The page searches while a filter is being written.
    with open_page(browser, board, "jobs", allowed=("status of 400",)) as page:
        expect(page.locator("tbody tr")).to_have_count(3)
        page.keyboard.press("/")
        for typed, option, value in (
            ("tas", "task:", "task:"),
            ("send", "send_email", "task:send_email "),
            ("state:rea", "ready", "task:send_email state:ready "),
        ):
            page.keyboard.type(typed)
            expect(page.get_by_role("option").first).to_contain_text(option)
            page.keyboard.press("ArrowDown")
            page.keyboard.press("Enter")
            expect(page.get_by_role("combobox", name="Filter")).to_have_value(value)
        page.keyboard.press("Enter")
        expect(page.locator("tbody tr")).to_have_count(2)


def test_times_follow_the_clock_of_the_database(browser: Browser, board: Board, jobs: Sql) -> None:
    (job,) = add_jobs(jobs, "send_email", run_at="'2030-03-01 12:00:00+00'")
    (due,) = add_jobs(jobs, "send_email", run_at="now() - interval '20 minutes'")
    with open_page(browser, board, f"jobs/{job}") as page:
        # The clock of this computer is three hours ahead.
        page.add_init_script("const now = Date.now; Date.now = () => now() + 3 * 3600 * 1000;")
        page.reload()
        main = page.locator("main")
        expect(main).to_contain_text("Mar 1, 2030, 13:00:00 GMT+1")
        page.keyboard.press("u")
        expect(main).to_contain_text("Mar 1, 2030, 12:00:00 UTC")
        page.goto(f"{board.url}jobs/{due}")
        expect(main).to_contain_text(re.compile(r"2[01]m(\d+s)? ago"))
        # The choice stays in this browser.
        expect(page.locator("header.top")).to_contain_text("UTC")


def test_jobs_appear_and_disappear_while_the_page_is_open(
    browser: Browser, board: Board, jobs: Sql
) -> None:
    with open_page(browser, board, "jobs", allowed=(NOT_FOUND,)) as page:
        expect(page.locator("main")).to_contain_text("The queue is empty")
        (job,) = add_jobs(jobs, "send_email")
        expect(get_row(page, job)).to_be_visible()
        overview = page.context.new_page()
        overview.goto(board.url)
        expect(get_stat(overview, "Ready")).to_contain_text("1")
        # Both tabs share one stream.
        assert board.service.events.stream_count == 1
        follower = page.context.new_page()
        follower.goto(f"{board.url}jobs/{job}")
        expect(follower.locator("h1")).to_contain_text(f"#{job}")
        jobs.run("select :schema.complete_jobs(array[$1::bigint])", job)
        expect(follower.locator("main")).to_contain_text("is not in the queue")
        expect(follower.locator("main")).to_contain_text("while this page was open")
        expect(page.locator("main")).to_contain_text("The queue is empty")
        # Another tab takes over when the one with the stream closes.
        page.close()
        (job,) = add_jobs(jobs, "send_email")
        expect(get_stat(overview, "Ready")).to_contain_text("1")
        assert board.service.events.stream_count <= 2


def test_new_jobs_do_not_move_the_rows_that_are_in_use(
    browser: Browser, board: Board, jobs: Sql
) -> None:
    ids = add_jobs(jobs, "send_email", 60, run_at="now() + interval '1 hour'")
    with open_page(browser, board, "jobs") as page:
        first = page.locator("tbody tr").first
        expect(first).to_contain_text(str(ids[-1]))
        for job in ids[-3:]:
            get_row(page, job).get_by_role("checkbox").click()
        for _ in range(5):
            page.keyboard.press("j")
        cursor = page.locator("tr.cursor")
        expect(cursor).to_contain_text(str(ids[-5]))
        added = add_jobs(jobs, "send_email", 14)
        jobs.run("delete from :schema._private_jobs where id = $1", ids[-4])
        pill = page.get_by_role("button", name="14 new, 1 left – show")
        expect(pill).to_be_visible()
        expect(first).to_contain_text(str(ids[-1]))
        expect(cursor).to_contain_text(str(ids[-5]))
        expect(get_row(page, ids[-4])).to_contain_text("Left the list")
        expect(page.locator(".selection")).to_contain_text("3 jobs selected")
        pill.click()
        expect(first).to_contain_text(str(added[-1]))
        expect(page.locator("tr.chosen")).to_have_count(3)
        # The pages are in the URL.
        page.get_by_role("button", name="Older").click()
        expect(page.locator("tbody tr")).to_have_count(23)
        expect(page).to_have_url(re.compile("before="))


# What has the focus when the preview of a change appears.
RECORD_FOCUS = """() => {
  new MutationObserver((_, observer) => {
    if (!document.querySelector("dialog")?.textContent.includes("This changes")) return;
    window.focused = document.activeElement.textContent;
    observer.disconnect();
  }).observe(document.body, { childList: true, subtree: true });
}"""


def test_jobs_can_be_found_chosen_and_retried_by_keyboard(
    browser: Browser, board: Board, jobs: Sql
) -> None:
    ids = add_jobs(jobs, "render_pdf", 4)
    fail_jobs(jobs, ids, "TimeoutError: upstream")
    with open_page(browser, board) as page:
        for key in ("g", "j"):
            page.keyboard.press(key)
        expect(page.locator("tbody tr")).to_have_count(4)
        page.keyboard.press("/")
        page.keyboard.type("error:upstream")
        page.keyboard.press("Enter")
        page.keyboard.press("Escape")
        expect(page).to_have_url(re.compile("q=error"))
        for key in ("j", "j", "x", "j", "X"):
            page.keyboard.press(key)
        expect(page.locator("tr.chosen")).to_have_count(2)
        page.evaluate(RECORD_FOCUS)
        page.keyboard.press("r")
        expect(get_dialog(page)).to_contain_text("This changes 2 jobs.")
        # Enter would have been safe at once.
        assert page.evaluate("focused") == "Retry 2 jobs"
        page.keyboard.press("Enter")
        expect(get_dialog(page)).to_contain_text("2 jobs retried.")
        page.keyboard.press("Enter")
        expect(get_dialog(page)).to_have_count(0)
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_contain_text("render_pdf")
        page.keyboard.press("?")
        help_dialog = get_dialog(page)
        expect(help_dialog).to_contain_text("Local time or UTC")
        help_dialog.get_by_label("Use single keys as shortcuts").uncheck()
        page.keyboard.press("Escape")
        page.keyboard.press("u")
        expect(page.locator("header.top")).to_contain_text("GMT+1")
    assert jobs.value("select count(*) from :schema._private_jobs where attempts = 0") == 2


def test_the_palette_goes_to_pages_jobs_tasks_and_queues_by_keyboard(
    browser: Browser, board: Board, jobs: Sql
) -> None:
    (job,) = add_jobs(jobs, "send_email", queue_name="'billing'")
    lock_queue(jobs, "billing", job, hours=1)
    with open_page(browser, board) as page:
        # Names come from the last snapshot.
        expect(get_stat(page, "Running")).to_contain_text("1")
        for typed, option, title in (
            ("err", "Errors", "Errors"),
            (f"job {job}", f"Job {job}", f"#{job}"),
            ("SEND", "send_email", "send_email"),
            ("bil", "billing", "Queues"),
        ):
            page.keyboard.press("Control+k")
            expect(get_dialog(page).get_by_role("combobox")).to_be_focused()
            page.keyboard.type(typed)
            expect(page.get_by_role("option", selected=True)).to_contain_text(option)
            page.keyboard.press("Enter")
            expect(page.locator("h1")).to_contain_text(title)
            expect(get_dialog(page)).to_have_count(0)
        page.get_by_role("button", name="Go to").press("Enter")
        page.keyboard.type("cro")
        assert find_violations(page) == []
        page.keyboard.press("Escape")
        expect(get_dialog(page)).to_have_count(0)


# Presses "/" as soon as the filter of the page exists, and returns whether it keeps the focus.
FILTER_AT_ONCE = """
async () => {
  const press = (key) =>
    document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  press("g");
  press("j");
  // The page is rendered before the browser paints it.
  while (!document.querySelector("[data-filter]")) await null;
  press("/");
  await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve, 100)));
  return document.activeElement.matches("[data-filter]");
}
"""


def test_a_key_that_focuses_the_filter_works_before_and_after_the_page_is_painted(
    browser: Browser, board: Board
) -> None:
    # The first visit loads the script of the page.
    with open_page(browser, board, "jobs") as page:
        go_to_overview(page)
        assert page.evaluate(FILTER_AT_ONCE)
        # The first one closes the options.
        for _ in range(2):
            page.keyboard.press("Escape")
        go_to_overview(page)
        page.keyboard.press("/")
        expect(page.get_by_role("combobox", name="Filter")).to_be_focused()


def go_to_overview(page: Page) -> None:
    for key in ("g", "o"):
        page.keyboard.press(key)
    expect(page.locator("h1")).not_to_have_text("Jobs")


def test_the_columns_of_jobs_are_chosen_by_keyboard_and_kept_by_the_browser(
    browser: Browser, board: Board, jobs: Sql
) -> None:
    (job,) = add_jobs(
        jobs, "render_pdf", priority="7", job_key="'invoice-1'", flags="array['gpu', 'eu']"
    )
    with open_page(browser, board, "jobs") as page:
        head = page.get_by_role("table", name="Jobs").locator("thead")
        expect(head).to_contain_text("AttemptsError")
        page.get_by_role("button", name="Columns…").press("Enter")
        dialog = get_dialog(page)
        # The first choice has the focus.
        expect(dialog.get_by_label("Queue")).to_be_focused()
        for label in ("Queue", "Priority", "Key", "Flags", "Locked by"):
            dialog.get_by_label(label, exact=True).press("Space")
        assert find_violations(page) == []
        page.keyboard.press("Escape")
        expect(get_dialog(page)).to_have_count(0)
        for _ in range(2):
            expect(head).to_contain_text("AttemptsKeyFlagsLocked byError")
            expect(head).not_to_contain_text("Queue")
            row = get_row(page, job)
            for text in ("7", "invoice-1", "eu, gpu"):
                expect(row).to_contain_text(text)
            page.reload()


def test_pages_poll_where_streams_do_not_pass(browser: Browser, board: Board, jobs: Sql) -> None:
    with open_page(browser, board, allowed=("net::ERR_FAILED",)) as page:
        page.route("**/api/v1/stream", lambda route: route.abort())
        page.reload()
        status = page.get_by_role("button", name="live data")
        expect(status).to_contain_text("Polling")
        add_jobs(jobs, "send_email")
        expect(get_stat(page, "Ready")).to_contain_text("1")
        page.keyboard.press(".")
        expect(status).to_contain_text(re.compile("Paused, data .* old"))


def test_a_session_that_ends_leaves_the_page_as_it_is(
    browser: Browser, board: Board, jobs: Sql
) -> None:
    ids = add_jobs(jobs, "send_email", 3, run_at="now() + interval '1 hour'")
    with open_page(browser, board, "jobs?q=task:send_email", allowed=("status of 40",)) as page:
        get_row(page, ids[0]).get_by_role("checkbox").click()
        page.context.clear_cookies()
        dialog = get_dialog(page)
        expect(dialog).to_contain_text("Your session has ended")
        dialog.get_by_label("Token").fill("wrong")
        dialog.get_by_label("Token").press("Enter")
        expect(dialog).to_contain_text("not valid")
        dialog.get_by_label("Token").fill(TOKEN)
        dialog.get_by_label("Token").press("Enter")
        expect(dialog).to_have_count(0)
        expect(page.locator(".selection")).to_contain_text("1 job selected")


def test_pages_stay_usable_while_the_database_is_unreachable(
    browser: Browser, board: Board, module_database: TestDatabase, jobs: Sql
) -> None:
    ids = add_jobs(jobs, "send_email", 3, run_at="now() + interval '1 hour'")
    with open_page(browser, board, "jobs", allowed=("status of 50",)) as page:
        expect(page.locator("tbody tr")).to_have_count(3)
        set_reachable(module_database, is_reachable=False)
        try:
            banner = page.locator(".banner")
            expect(banner).to_contain_text("unreachable")
            expect(banner).to_contain_text("The pages show data from")
            expect(page.locator("header.top .status")).to_contain_text("Outage")
            expect(page.locator("tbody tr")).to_have_count(3)
            get_row(page, ids[0]).get_by_role("checkbox").click()
            retry = page.get_by_role("button", name="Retry…")
            expect(retry).to_have_attribute("aria-disabled", "true")
            expect(retry).to_have_attribute("title", "The database is unreachable.")
            page.get_by_role("link", name="Overview").click()
            expect(get_stat(page, "Oldest ready job")).to_be_visible()
        finally:
            set_reachable(module_database, is_reachable=True)
        expect(banner).to_have_count(0)
        connection = Sql(module_database.dsn, module_database.schema)
        add_jobs(connection, "render_pdf")
        connection.close()
        expect(get_stat(page, "Ready")).to_contain_text("1")


def set_reachable(queue: TestDatabase, *, is_reachable: bool) -> None:
    """End the sessions of a database and reject new ones, or accept them again."""
    with psycopg.connect(queue.cluster.dsn("postgres"), autocommit=True) as connection:
        name = sql.Identifier(queue.name)
        allowed = sql.Literal(is_reachable)
        statement = sql.SQL("alter database {} with allow_connections {}")
        connection.execute(statement.format(name, allowed))
        if not is_reachable:
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s",
                [queue.name],
            )


def test_pages_fit_a_phone(browser: Browser, board: Board, jobs: Sql) -> None:
    ids = add_jobs(jobs, "a_task_with_a_name_that_is_longer_than_the_screen_of_a_phone_is_wide", 3)
    fail_jobs(jobs, ids, "E" * 300)
    with open_page(
        browser, board, viewport=PHONE, has_touch=True, is_mobile=True, color_scheme="dark"
    ) as page:
        expect(get_stat(page, "Failed")).to_contain_text("3")
        assert_fits(page)
        page.get_by_role("navigation", name="Main pages").get_by_role("link", name="Jobs").tap()
        expect(page.locator("tbody tr")).to_have_count(3)
        assert_fits(page)
        page.locator("tbody tr").first.tap()
        expect(page.locator("h1")).to_contain_text("a_task")
        assert_fits(page)
        page.get_by_role("button", name="Retry…").tap()
        get_dialog(page).get_by_role("button", name="Retry 1 job").tap()
        expect(get_dialog(page)).to_contain_text("1 job retried.")
    assert jobs.value("select count(*) from :schema._private_jobs where attempts = 0") == 1
