"""Live data in a real browser: many tabs share one stream, and changes appear soon."""

import statistics
import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, Page, Request, expect

from graphile_worker.contrib.dashboard._poller import DEFAULT_TIMINGS
from tests.conftest import TestDatabase
from tests.support.dashboard import add_jobs, open_dashboard, open_page
from tests.support.processes import eventually
from tests.support.sql import Sql

pytestmark = [pytest.mark.single_version, pytest.mark.timeout(300)]

TABS = 7
ROUNDS = 5
SECONDS = 2.0


def expect_ready(page: Page, count: int) -> None:
    stat = page.locator(".stat", has=page.get_by_text("Ready", exact=True))
    expect(stat.locator(".stat-value")).to_have_text(str(count))


def test_many_tabs_share_one_stream_and_another_tab_leads_when_the_leader_closes(
    browser: Browser, database: TestDatabase, sql: Sql
) -> None:
    with open_dashboard(database) as board, open_page(browser, board) as page:
        leaders = [page]

        def note(request: Request) -> None:
            if request.url.endswith("/api/v1/stream"):
                leaders.append(request.frame.page)

        page.context.on("request", note)
        tabs = [page, *(page.context.new_page() for _ in range(TABS - 1))]
        for tab in tabs[1:]:
            tab.goto(board.url)
        for tab in tabs:
            expect_ready(tab, 0)
        streams = board.service.events
        assert streams.stream_count == 1
        for count in (1, 2):
            leader = leaders[-1]
            leader.close()
            tabs.remove(leader)
            add_jobs(sql, "send_email")
            for tab in tabs:
                expect_ready(tab, count)
            assert leaders[-1] in tabs
            eventually(lambda: streams.stream_count == 1, "one stream is left")
        assert len(leaders) == 3


@pytest.mark.nightly
@pytest.mark.serial
def test_a_job_added_by_sql_appears_within_two_seconds_and_disappears_when_it_is_done(
    browser: Browser, database: TestDatabase, sql: Sql, figure: Callable[[str], None]
) -> None:
    appeared, disappeared = [], []
    with (
        open_dashboard(database, timings=DEFAULT_TIMINGS) as board,
        open_page(browser, board, "jobs") as page,
    ):
        expect(page.locator("main")).to_contain_text("The queue is empty")
        for _ in range(ROUNDS):
            started_at = time.monotonic()
            (job,) = add_jobs(sql, "send_email")
            row = page.locator("tbody").get_by_role("link", name=str(job), exact=True)
            row.wait_for()
            appeared.append(time.monotonic() - started_at)
            started_at = time.monotonic()
            sql.run("select :schema.complete_jobs(array[$1::bigint])", job)
            row.wait_for(state="detached")
            disappeared.append(time.monotonic() - started_at)
    times = [statistics.median(each) for each in (appeared, disappeared)]
    figure(
        f"dashboard in a browser: a job added by SQL appears after {times[0]:.2f} s, and "
        f"disappears {times[1]:.2f} s after it is done (medians of {ROUNDS})"
    )
    assert max(times) < SECONDS
