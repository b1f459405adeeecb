"""A dashboard behind a real uvicorn, in a thread of the test, and a caller that has signed in."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

import httpx
import uvicorn

from graphile_worker import App
from graphile_worker._sql.identifiers import Schemas
from graphile_worker.contrib.dashboard._dashboard import build_dashboard
from graphile_worker.contrib.dashboard._poller import PollTimings
from graphile_worker.contrib.dashboard._settings import DashboardSettings
from tests.conftest import TestDatabase
from tests.support.proxy import make_accepted_connections
from tests.support.sql import Sql

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# It signs in any number of browsers: open `board.link`.
TOKEN = "a-token-of-the-tests-0123456789"

STARTS_WITHIN_SECONDS = 30.0

# On a busy machine, a snapshot takes long, and with the usual factor the next one would be late.
TEST_TIMINGS = PollTimings(snapshot_pause_factor=4.0)


class Caller:
    """Calls the API as a browser does: with a cookie, an origin and the token against forgery."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = httpx.Client(base_url=url, timeout=30.0, trust_env=False)
        self.csrf = ""

    def sign_in(self, token: str = TOKEN, **more: str) -> Self:
        """Sign in with the token."""
        self.csrf = self.get("session")["csrf"]
        self.post("login", {"token": token, **more})
        self.csrf = self.get("session")["csrf"]
        return self

    def get(self, path: str, **parameters: Any) -> Any:
        """Get a resource, which must succeed."""
        return self._read(self.request("GET", path, params=parameters))

    def post(self, path: str, body: object = None) -> Any:
        """Change something, which must succeed."""
        return self._read(self.request("POST", path, body))

    def delete(self, path: str) -> Any:
        """Delete a resource, which must succeed."""
        return self._read(self.request("DELETE", path))

    def request(self, method: str, path: str, body: object = None, **more: Any) -> httpx.Response:
        """Return the answer, which may be a problem."""
        if method != "GET":
            headers = {"origin": self._origin, "x-csrf-token": self.csrf}
            headers["content-type"] = "application/json"
            more["headers"] = {**headers, **more.get("headers", {})}
            more["content"] = json.dumps({} if body is None else body)
        return self.http.request(method, f"api/v1/{path}", **more)

    def close(self) -> None:
        self.http.close()

    @property
    def _origin(self) -> str:
        url = httpx.URL(self.url)
        return f"{url.scheme}://{url.netloc.decode()}"

    def _read(self, response: httpx.Response) -> Any:
        assert response.is_success, f"{response.status_code}: {response.text}"
        return response.json()


class Board:
    """A dashboard that is served at `url`. `link` signs a browser in."""

    def __init__(self, url: str, application: Any) -> None:
        self.url = url
        self.link = f"{url}#token={TOKEN}"
        self.application = application
        self._callers: list[Caller] = []

    @property
    def service(self) -> Any:
        """The service of the dashboard, after the first request."""
        [(service, _)] = self.application._served.values()
        return service

    def call(self) -> Caller:
        """Return a caller that has not signed in."""
        caller = Caller(self.url)
        self._callers.append(caller)
        return caller

    def sign_in(self, **more: str) -> Caller:
        """Return a caller that has signed in."""
        return self.call().sign_in(**more)

    def close(self) -> None:
        for caller in self._callers:
            caller.close()


@contextmanager
def open_dashboard(
    database: TestDatabase,
    *,
    app: App[Any] | None = None,
    dsn: str | None = None,
    role: str = "admin",
    timings: PollTimings = TEST_TIMINGS,
    login: dict[str, Any] | None = None,
    **settings: Any,
) -> Iterator[Board]:
    """Serve a dashboard.

    Args:
        database: The database of the queue.
        app: Its tasks.
        dsn: How to connect (default: as the owner).
        role: The role of people who sign in with the token.
        timings: Intervals of the poller.
        login: Other ways to sign in.
        settings: Fields of `DashboardSettings`.
    """
    application = build_dashboard(
        dsn or database.dsn,
        Schemas.from_names(database.schema),
        DashboardSettings(**settings),
        app=app,
        role=role,
        timings=timings,
        **({"token": TOKEN} if login is None else login),
    )
    with serve_asgi(application) as url:
        board = Board(url, application)
        try:
            yield board
        finally:
            board.close()


@contextmanager
def serve_asgi(
    application: Any, *, dashboards: Iterable[Any] = (), **options: Any
) -> Iterator[str]:
    """Serve an ASGI application with uvicorn in a thread, and yield its address.

    Args:
        application: The application.
        dashboards: Dashboards that it mounts.
        options: More options of uvicorn.
    """
    config = uvicorn.Config(
        application,
        log_config=None,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=20,
        # Old releases of uvicorn would make uvloop the policy of the whole process.
        loop="asyncio",
        # The dashboard decides itself which proxies it trusts.
        proxy_headers=False,
        **options,
    )
    started = threading.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            started.set()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            # uvicorn waits for open streams.
            for each in (application, *dashboards):
                with suppress(AttributeError):
                    each.end_streams()
            await super().shutdown(sockets)
            await make_accepted_connections()
            # A browser may have connected again just before the end. A closed connection ends in
            # the next steps of the loop.
            while self.server_state.connections:
                for each in list(self.server_state.connections):
                    each.transport.close()
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.01)
            for each in dashboards:
                # A mounted dashboard gets no lifespan events.
                await each.aclose()

    server = Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=server.run, args=([listener],), name="uvicorn of a test")
        thread.start()
        try:
            assert started.wait(STARTS_WITHIN_SECONDS)
            yield f"http://127.0.0.1:{port}/"
        finally:
            server.should_exit = True
            thread.join()


# Reports violations of the content security policy as errors of the console.
WATCH_POLICY = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`));
"""


@contextmanager
def open_page(
    browser: "Browser",
    board: Board,
    path: str = "",
    *,
    allowed: tuple[str, ...] = (),
    **context: Any,
) -> Iterator["Page"]:
    """Open a page in a browser that has signed in.

    At the end, the page must not have had errors in its console, violations of the content
    security policy, or requests to other origins.

    Args:
        browser: The browser. Each page gets its own cookies and storage.
        board: The dashboard.
        path: The page and its query, for example `jobs?q=state:failed`.
        allowed: Parts of messages that are not errors. Chromium reports answers with a status
            of 400 or higher in the console: `"status of 400"`.
        context: Options of the browser's context, for example `viewport`.
    """
    problems: list[str] = []

    def note(kind: str, text: str) -> None:
        if not any(each in text for each in allowed):
            problems.append(f"{kind}: {text}")

    options = {"locale": "en-US", "timezone_id": "Europe/Berlin", **context}
    opened = browser.new_context(**options)
    try:
        opened.add_init_script(WATCH_POLICY)
        page = opened.new_page()
        page.on(
            "console",
            lambda message: (
                note("console", f"{message.text} {message.location['url']}")
                if message.type == "error"
                else None
            ),
        )
        page.on("pageerror", lambda error: note("error", str(error)))
        page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith((board.url, "data:", "blob:"))
                else note("request", request.url)
            ),
        )
        page.goto(
            f"{board.url}{path}#{board.link.partition('#')[2]}", wait_until="domcontentloaded"
        )
        try:
            page.locator("#main h1, #main .empty h2").first.wait_for()
        except Exception as error:
            shown = page.locator("body").inner_text()
            error.add_note(f"{page.url} shows {shown!r}. Its problems: {problems}")
            raise
        yield page
    finally:
        opened.close()
    assert not problems, problems


def add_jobs(sql: Sql, task: str, number: int = 1, **arguments: str) -> list[int]:
    """Add jobs, each argument an SQL expression, and return their ids."""
    given = "".join(f", {name} => {value}" for name, value in arguments.items())
    rows = sql.run(
        f"select (:schema.add_job($1{given})).id from generate_series(1, $2)", task, number
    )
    return [row[0] for row in rows]


def fail_jobs(sql: Sql, ids: list[int], error: str) -> None:
    """Fail jobs permanently. The error of each contains its id in the place of `{}`."""
    sql.run(
        "update :schema._private_jobs set attempts = max_attempts, "
        "last_error = replace($2, '{}', id::text) where id = any ($1)",
        ids,
        error,
    )
