"""Requests that a dashboard rejects: hosts, origins, forgery, missing permissions."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, closing, nullcontext
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from starlette.requests import Request

from graphile_worker.contrib.dashboard._api import ApiRoute, Problem
from graphile_worker.contrib.dashboard._dashboard import ALL_ROUTES
from graphile_worker.contrib.dashboard._security import CONTENT_SECURITY_POLICY, RequestGuard
from graphile_worker.contrib.dashboard._settings import DashboardSettings
from graphile_worker.contrib.dashboard._stream import Broadcaster
from tests.conftest import TestDatabase
from tests.support.dashboard import Board, Caller, open_dashboard

# The nightly matrix runs it on the other versions of Python and PostgreSQL.
pytestmark = pytest.mark.single_version

PUBLIC_API = {("GET", "/session"), ("POST", "/login"), ("POST", "/logout")}


@pytest.fixture(scope="module")
def board(module_database: TestDatabase) -> Iterator[Board]:
    """A dashboard on which everybody who signs in may do everything."""
    with open_dashboard(module_database) as board:
        yield board


@pytest.fixture(scope="module")
def viewers(module_database: TestDatabase) -> Iterator[Board]:
    """A dashboard on which people may only look."""
    with open_dashboard(module_database, role="read-only") as board:
        yield board


def fill(route: ApiRoute) -> str:
    """Return a path of a route, below the API."""
    return re.sub(r"\{\w+\}", "1", route.path).lstrip("/")


def list_routes(*, is_change: bool | None = None) -> list[ApiRoute]:
    routes = [route for route in ALL_ROUTES if route.path != "/stream"]
    return [each for each in routes if is_change in (None, each.method != "GET")]


# Hosts


def test_requests_for_hosts_that_are_not_allowed_are_rejected(board: Board) -> None:
    rejected = [
        "evil.test",
        "evil.test:80",
        "127.0.0.1.evil.test",
        "localhost.evil.test",
        "",
        "a b",
    ]
    with httpx.Client(base_url=board.url, trust_env=False) as http:
        for host in rejected:
            for path in ("", "api/v1/session", "static/app.css", "healthz"):
                answer = http.get(path, headers={"host": host})
                assert answer.status_code in (400, 421), (host, path)
        for host in ("localhost", "localhost:5680", "127.0.0.1", "[::1]:5680", "192.168.1.7:80"):
            assert http.get("api/v1/session", headers={"host": host}).is_success, host


def test_more_hosts_can_be_allowed(database: TestDatabase) -> None:
    with (
        open_dashboard(database, allowed_hosts=("jobs.example.com", "one.test:8443")) as board,
        httpx.Client(base_url=board.url, trust_env=False) as http,
    ):

        def ask(host: str) -> int:
            return http.get("api/v1/session", headers={"host": host}).status_code

        assert ask("jobs.example.com") == ask("Jobs.Example.com:1234") == 200
        assert ask("one.test:8443") == 200
        assert ask("one.test") == ask("one.test:80") == 421


def test_a_host_with_a_leading_dot_allows_a_domain_and_its_subdomains() -> None:
    guard = RequestGuard(DashboardSettings(allowed_hosts=(".Example.com", ".one.test:8443")))
    for host, is_allowed in {
        "example.com": True,
        "jobs.example.com:1234": True,
        "a.b.Example.com": True,
        "evilexample.com": False,
        "example.com.evil.test": False,
        "one.test:8443": True,
        "a.one.test:8443": True,
        "a.one.test": False,
    }.items():
        request = Request({"type": "http", "headers": [(b"host", host.encode())]})
        with nullcontext() if is_allowed else pytest.raises(Problem):
            guard.check_host(request)


def test_a_forwarded_host_does_not_replace_the_check_of_the_host(database: TestDatabase) -> None:
    with (
        open_dashboard(database, forwarded=True, allowed_hosts=("jobs.example.com",)) as board,
        httpx.Client(base_url=board.url, trust_env=False) as http,
    ):
        for host, forwarded, status in (
            ("127.0.0.1", "jobs.example.com", 200),
            ("evil.test", "jobs.example.com", 421),
            ("jobs.example.com", "evil.test", 421),
        ):
            headers = {"host": host, "x-forwarded-host": forwarded}
            assert http.get("api/v1/session", headers=headers).status_code == status, headers


# Origins and forgery

SAME = {"sec-fetch-site": "same-origin"}


def test_changes_need_an_own_origin_a_token_and_json(board: Board) -> None:
    caller = board.sign_in()
    origin = board.url.rstrip("/")
    token = {"x-csrf-token": caller.csrf}
    json_type = {"content-type": "application/json"}
    accepted: list[dict[str, str]] = [
        {**SAME, "origin": origin, **token, **json_type},
        {**SAME, **token, **json_type},
        {"origin": origin, **token, **json_type},
        {"origin": origin, **token, "content-type": "Application/JSON; charset=utf-8"},
    ]
    rejected: list[dict[str, str]] = [
        {},
        {**token, **json_type},
        {**SAME, "origin": origin, **json_type},
        {**SAME, "origin": origin, "x-csrf-token": "0" * 64, **json_type},
        {**SAME, "origin": origin, "x-csrf-token": "ünïcode", **json_type},
        {**SAME, "origin": origin, **token},
        {**SAME, "origin": origin, **token, "content-type": "text/plain"},
        {**SAME, "origin": origin, **token, "content-type": "application/x-www-form-urlencoded"},
        {"sec-fetch-site": "cross-site", "origin": origin, **token, **json_type},
        {"sec-fetch-site": "same-site", "origin": origin, **token, **json_type},
        {"sec-fetch-site": "none", "origin": origin, **token, **json_type},
        {**SAME, "origin": "http://evil.test", **token, **json_type},
        {**SAME, "origin": "null", **token, **json_type},
        {"origin": origin.replace("http:", "https:"), **token, **json_type},
        {"origin": origin + "0", **token, **json_type},
        {"referer": board.url, **token, **json_type},
    ]
    for headers in accepted:
        assert send_plain(caller, headers).status_code != 403, headers
    for headers in rejected:
        answer = send_plain(caller, headers)
        assert (answer.status_code, answer.json()["code"]) == (403, "csrf"), headers


def send_plain(caller: Caller, headers: dict[str, str]) -> httpx.Response:
    """Send a change with only these headers and the cookie."""
    encoded = {name.encode(): value.encode() for name, value in headers.items()}
    request = caller.http.build_request("POST", "api/v1/login", content=b"{}", headers=encoded)
    return caller.http.send(request)


def test_the_token_of_another_session_is_rejected(board: Board) -> None:
    first, second = board.sign_in(), board.sign_in()
    assert first.csrf != second.csrf
    first.csrf = second.csrf
    answer = first.request("POST", "login")
    assert (answer.status_code, answer.json()["code"]) == (403, "csrf")


def test_each_route_that_changes_something_needs_an_origin_and_a_token(board: Board) -> None:
    caller = board.sign_in()
    token, origin = caller.csrf, board.url.rstrip("/")
    for route in list_routes(is_change=True):
        for headers in ({"x-csrf-token": ""}, {"origin": "http://evil.test"}):
            sent = {"origin": origin, "x-csrf-token": token, **headers}
            answer = caller.request(route.method, fill(route), headers=sent)
            assert (answer.status_code, answer.json()["code"]) == (403, "csrf"), route.path


def test_only_get_leaves_everything_as_it_is(board: Board) -> None:
    assert {route.method for route in ALL_ROUTES} <= {"GET", "POST", "DELETE"}
    caller = board.sign_in()
    for method in ("PUT", "PATCH", "OPTIONS", "HEAD", "TRACE"):
        answer = caller.http.request(method, "api/v1/session")
        assert answer.status_code in (400, 405), method
    assert caller.http.post("").status_code == 405


# Permissions


def test_people_who_have_not_signed_in_may_use_only_public_routes(board: Board) -> None:
    caller = board.call()
    caller.csrf = caller.get("session")["csrf"]
    for route in ALL_ROUTES:
        answer = caller.request(route.method, fill(route))
        if (route.method, route.path) in PUBLIC_API:
            assert answer.status_code in (200, 400), route.path
        else:
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")


def test_the_session_of_people_who_have_not_signed_in_shows_only_how(board: Board) -> None:
    session = board.call().get("session")
    assert session["user"] is None
    assert session["login"] == ["token"]
    for name in ("schema", "database", "version", "trace_url"):
        assert session[name] is None, name


def test_a_read_only_user_can_change_nothing_by_any_route(viewers: Board) -> None:
    caller = viewers.sign_in()
    assert caller.get("session")["user"]["permissions"] == ["view"]
    for route in list_routes(is_change=True):
        if (route.method, route.path) not in PUBLIC_API:
            for body in ({}, {"action": "retry", "ids": ["1"], "task": "x", "token": "x"}):
                answer = caller.request(route.method, fill(route), body)
                assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), route.path


def test_a_read_only_user_does_not_see_payloads(viewers: Board) -> None:
    caller = viewers.sign_in()
    for route in list_routes(is_change=False):
        answer = caller.request("GET", fill(route))
        assert (answer.status_code == 403) == (str(route.permission) == "view_payload"), route.path


def test_a_read_only_dashboard_rejects_changes_of_administrators(
    module_database: TestDatabase,
) -> None:
    with open_dashboard(module_database, read_only=True, hide_payloads=True) as board:
        caller = board.sign_in()
        session = caller.get("session")
        assert session["read_only"]
        assert session["hide_payloads"]
        assert session["user"]["permissions"] == ["view"]
        for route in list_routes(is_change=True):
            if (route.method, route.path) not in PUBLIC_API:
                answer = caller.request(route.method, fill(route))
                assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


# Headers


def test_each_answer_has_the_security_headers(board: Board) -> None:
    caller = board.sign_in()
    paths = ["", "jobs", "jobs/1", "healthz", "healthz/ready", "robots.txt", "static/missing.js"]
    paths += ["favicon.ico", "static/vendor/preact.js", "api/v1/missing", "api/v2/jobs"]
    paths += [f"api/v1/{fill(route)}" for route in list_routes(is_change=False)]
    for path in paths:
        headers = caller.http.get(path).headers
        assert headers["content-security-policy"] == CONTENT_SECURITY_POLICY, path
        assert headers["x-content-type-options"] == "nosniff", path
        assert headers["referrer-policy"] == "no-referrer", path
        is_static = path.startswith("static/vendor")
        assert headers["cache-control"] == ("no-cache" if is_static else "no-store"), path
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers or "uvicorn" in headers["server"]
    stream = caller.http.stream("GET", "api/v1/stream")
    with stream as answer:
        assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
        assert answer.headers["cache-control"] == "no-store"


def test_files_outside_of_the_static_folder_are_not_served(board: Board, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    paths = ["static/../__init__.py", "static/%2e%2e/__init__.py", "static/..%2f__init__.py"]
    paths += [f"static/{secret}", f"static/{quote(str(secret), safe='')}", "static/vendor"]
    paths += ["static/vendor/VENDOR.toml", "static/", "static/%00.js", "static/vendor/../x.js"]
    url = httpx.URL(board.url)
    for path in paths:
        # Other clients remove dots from paths.
        connection = HTTPConnection(url.host, url.port or 80)
        with closing(connection):
            connection.request("GET", f"/{path}")
            assert connection.getresponse().status == 404, path


def test_bodies_that_are_not_json_objects_are_rejected(board: Board) -> None:
    caller = board.sign_in()
    bodies: list[Any] = ["[]", "1", "{", '{"a": NaN}', "[" * 4_000, "\ufffe", '{"token": 7}']
    for body in bodies:
        headers = {"origin": board.url.rstrip("/"), "x-csrf-token": caller.csrf}
        headers["content-type"] = "application/json"
        answer = caller.http.post("api/v1/login", content=body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_request"), body[:20]


def test_a_body_that_is_too_large_is_rejected(board: Board) -> None:
    caller = board.sign_in()
    for path, size in (("login", 5_000), ("logout", 5_000), ("jobs/check", 9_000_000)):
        answer = caller.request("POST", path, {"token": "x" * size})
        assert (answer.status_code, answer.json()["code"]) == (413, "too_large"), path


def test_a_session_opens_at_most_20_streams() -> None:
    events = Broadcaster()
    with ExitStack() as streams:
        for _ in range(20):
            assert not events.is_full("ann")
            streams.enter_context(events.open_stream("ann"))
        assert events.is_full("ann")
        assert not events.is_full("bob")
    assert not events.is_full("ann")
