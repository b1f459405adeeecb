"""A page of another site in a real browser: it can neither read a dashboard nor change anything."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page

from tests.conftest import TestDatabase
from tests.support.browser import chromium
from tests.support.dashboard import open_dashboard

pytestmark = [pytest.mark.nightly, pytest.mark.single_version]

# What a page of the other site tries, with the cookies of the person.
ATTACK = """
async (url) => {
  const tries = {
    read: () => fetch(`${url}api/v1/session`, {credentials: "include"}),
    change: () => fetch(`${url}api/v1/jobs`, {
      method: "POST", credentials: "include", headers: {"content-type": "text/plain"},
      mode: "no-cors", body: "{}",
    }),
  };
  const results = {};
  for (const [name, attempt] of Object.entries(tries)) {
    try {
      const answer = await attempt();
      results[name] = answer.status;
    } catch {
      results[name] = "failed";
    }
  }
  return results;
}
"""


@pytest.fixture
def page() -> Iterator[Page]:
    """A page of a browser for which evil.test is this machine."""
    with chromium("--host-resolver-rules=MAP evil.test 127.0.0.1") as browser:
        yield browser.new_page()


def test_a_name_that_leads_to_this_machine_is_rejected(database: TestDatabase, page: Page) -> None:
    with open_dashboard(database) as board:
        answer = page.goto(board.url.replace("127.0.0.1", "evil.test"))
        assert answer is not None
        assert answer.status == 421
        assert page.evaluate("() => fetch('/api/v1/session').then((each) => each.status)") == 421


def test_a_page_of_another_site_reads_and_changes_nothing(
    database: TestDatabase, page: Page
) -> None:
    with open_dashboard(database) as board:
        page.goto(board.link)
        page.wait_for_function("() => !location.hash")
        other = board.url.replace("127.0.0.1", "localhost")
        page.route(f"{other}page", lambda route: route.fulfill(body="<p>other site</p>"))
        page.goto(f"{other}page")
        assert page.evaluate(ATTACK, board.url) == {"read": "failed", "change": "failed"}
        caller = board.sign_in()
        assert caller.get("overview")["totals"]["ready"] in (0, None)
