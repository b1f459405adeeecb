"""Can I reach it, and is this production? Below a path, on a phone, in a real browser."""

import pytest
from playwright.sync_api import Browser, expect
from starlette.applications import Starlette
from starlette.routing import Mount

from graphile_worker import App
from graphile_worker.contrib.dashboard import dashboard
from tests.conftest import TestDatabase
from tests.support.dashboard import TOKEN, Board, add_jobs, open_page, serve_asgi
from tests.support.sql import Sql

pytestmark = [pytest.mark.single_version, pytest.mark.timeout(300)]

PHONE = {"width": 390, "height": 844}


def test_pages_below_a_path_work_on_a_phone_and_name_their_environment(
    browser: Browser, database: TestDatabase, sql: Sql
) -> None:
    (job,) = add_jobs(sql, "send_email", queue_name="'a/b'")
    app = App(database.dsn, schema=database.schema)
    mounted = dashboard(app, token=TOKEN, environment="production")
    host = Starlette(routes=[Mount("/tools", routes=[Mount("/jobs", app=mounted)])])
    with (
        serve_asgi(host, dashboards=[mounted]) as url,
        # It fails if a page sends a request to an address that is not below the path.
        open_page(
            browser, Board(f"{url}tools/jobs/", mounted), viewport=PHONE, has_touch=True
        ) as page,
    ):
        badge = page.locator("header .env")
        expect(badge).to_have_text("production")
        expect(badge).to_have_attribute("data-level", "production")
        expect(page.locator(".stat", has=page.get_by_text("Ready", exact=True))).to_contain_text(
            "1"
        )
        page.get_by_role("navigation", name="Main pages").get_by_role("link", name="Jobs").tap()
        page.locator("tbody tr").first.tap()
        expect(page.locator("h1")).to_contain_text(f"#{job}")
        expect(page).to_have_url(f"{url}tools/jobs/jobs/{job}")
        # A link that someone sent opens the same page.
        page.reload()
        expect(page.locator("h1")).to_contain_text(f"#{job}")
        expect(badge).to_be_visible()
        expect(page).to_have_title(f"{job} · Job · Graphile Worker · production")
