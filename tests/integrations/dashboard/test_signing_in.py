"""How people sign in to a dashboard: links, tokens, passwords, the host's function, a proxy."""

import base64
import sys
import time
from contextlib import closing
from datetime import timedelta
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import RedirectResponse

from graphile_worker._cli.dashboard import LinkPrinter
from graphile_worker._sql.identifiers import Schemas
from graphile_worker.contrib.dashboard import User, dashboard
from graphile_worker.contrib.dashboard._api import Problem
from graphile_worker.contrib.dashboard._auth import (
    COOKIE_NAME,
    OneTimeLinks,
    Sessions,
    Throttle,
    make_key,
)
from graphile_worker.contrib.dashboard._dashboard import build_dashboard
from graphile_worker.contrib.dashboard._poller import PollTimings
from graphile_worker.contrib.dashboard._security import RequestGuard
from graphile_worker.contrib.dashboard._settings import DashboardSettings
from graphile_worker.errors import ConfigurationError
from tests.conftest import TestDatabase
from tests.support.dashboard import TOKEN, Board, Caller, open_dashboard, serve_asgi

# The nightly matrix runs it on the other versions of Python and PostgreSQL.
pytestmark = pytest.mark.single_version

PASSWORD = "correct horse"
HOUR = timedelta(hours=1)


def attempt(caller: Caller, **body: str) -> httpx.Response:
    """Try to sign in."""
    caller.csrf = caller.get("session")["csrf"]
    return caller.request("POST", "login", body)


def encode_basic(name: str, password: str) -> dict[str, str]:
    return {"authorization": f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"}


def test_a_link_signs_in_one_browser(database: TestDatabase) -> None:
    tokens: list[str] = []
    links = OneTimeLinks(tokens.append)
    links.renew()
    with open_dashboard(database, login={"links": links}) as board:
        caller = board.sign_in(token=tokens[0])
        assert caller.get("session")["user"]["name"] == "dashboard"
        assert attempt(board.call(), token=tokens[0]).status_code == 401
        assert len(tokens) == 2
        assert board.sign_in(token=tokens[1]).get("overview")


def test_a_link_expires_after_10_minutes() -> None:
    now, tokens = [0.0], list[str]()
    links = OneTimeLinks(tokens.append, clock=lambda: now[0])
    links.renew()
    now[0] = 599.0
    assert links.use(tokens[0])
    now[0] += 601.0
    assert not links.use(tokens[1])
    assert links.use(tokens[2])


def test_only_a_terminal_gets_the_link_for_the_next_browser(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for is_terminal in (True, False):
        monkeypatch.setattr(sys.stdout, "isatty", lambda is_terminal=is_terminal: is_terminal)
        printer = LinkPrinter("http://127.0.0.1:5680/", is_opened=False)
        printer.announce("first")
        printer.announce("second")
        printed = capsys.readouterr().out
        assert "#token=first" in printed
        assert ("#token=second" in printed) is is_terminal


def test_the_cookie_is_strict_and_out_of_reach_of_scripts(dashboard: Board) -> None:
    answer = attempt(dashboard.call(), token=TOKEN)
    attributes = [each.strip().lower() for each in answer.headers["set-cookie"].split(";")]
    assert {"httponly", "samesite=strict", "path=/", "max-age=43200"} <= set(attributes)
    assert "secure" not in attributes


def test_each_login_begins_a_new_session(dashboard: Board) -> None:
    caller = dashboard.call()
    cookies: list[str] = []
    for _ in range(2):
        caller.http.cookies.set(COOKIE_NAME, "1.chosen-by-an-attacker.0", "127.0.0.1", "/")
        caller.sign_in()
        cookies.append(caller.http.cookies[COOKIE_NAME])
    assert len(set(cookies)) == 2
    assert not any("chosen" in cookie for cookie in cookies)


def test_signing_out_ends_the_session_of_a_copied_cookie(dashboard: Board) -> None:
    caller, copy = dashboard.sign_in(), dashboard.call()
    copy.http.cookies.set(COOKIE_NAME, caller.http.cookies[COOKIE_NAME])
    assert copy.get("session")["user"]
    caller.post("logout")
    assert caller.get("session")["user"] is None
    assert copy.get("session")["user"] is None


def test_cookies_that_are_changed_expired_or_of_another_server_do_not_count() -> None:
    sessions = Sessions(b"key", timedelta(hours=1))
    cookie, session_id, _ = sessions.begin("ann")
    found = sessions.read(cookie)
    assert found is not None
    assert found[:2] == ("ann", session_id)
    version, body, signature = cookie.split(".")
    for wrong in (
        "",
        "1",
        "1.",
        f"2.{body}.{signature}",
        f"1.{body}x.{signature}",
        f"1.{body}.{signature[:-1]}",
        f"1..{signature}",
        "1.ü.ü",
    ):
        assert sessions.read(wrong) is None, wrong
    assert Sessions(b"other", timedelta(hours=1)).read(cookie) is None
    expired, _, _ = Sessions(b"key", timedelta(seconds=-1)).begin("ann")
    assert sessions.read(expired) is None


def test_a_secret_makes_cookies_valid_in_several_processes(database: TestDatabase) -> None:
    login = {"token": TOKEN, "secret": "a secret of 16 or more"}
    with (
        open_dashboard(database, login=login) as first,
        open_dashboard(database, login=login) as second,
        open_dashboard(database) as other,
    ):
        cookie = first.sign_in().http.cookies[COOKIE_NAME]
        for board, is_known in ((second, True), (other, False)):
            caller = board.call()
            caller.http.cookies.set(COOKIE_NAME, cookie)
            assert (caller.get("session")["user"] is not None) is is_known


def test_a_new_password_or_token_ends_all_sessions() -> None:
    keys = {
        make_key("a secret of 16 or more", password, token)
        for password in (None, "one password", "one other password")
        for token in (None, "one token", "one other token")
    }
    assert len(keys) == 9
    cookie, _, _ = Sessions(make_key("a secret of 16 or more", PASSWORD), HOUR).begin("ann")
    assert Sessions(make_key("a secret of 16 or more", PASSWORD), HOUR).read(cookie)
    assert Sessions(make_key("a secret of 16 or more", "new horse"), HOUR).read(cookie) is None


def test_people_sign_in_with_a_password_and_their_name(database: TestDatabase) -> None:
    with open_dashboard(database, login={"password": PASSWORD}) as board:
        caller = board.call()
        assert caller.get("session")["login"] == ["password"]
        assert attempt(caller, password="wrong horse").json()["code"] == "unauthenticated"
        assert attempt(caller, password=PASSWORD, user="ann\x1b[0m\u202e").is_success
        assert caller.get("session")["user"]["name"] == "ann[0m"


def test_a_password_also_works_as_http_basic(database: TestDatabase) -> None:
    with (
        open_dashboard(database, login={"password": PASSWORD}) as board,
        httpx.Client(base_url=board.url, trust_env=False) as http,
    ):
        right = http.get("api/v1/session", headers=encode_basic("bob", PASSWORD))
        assert right.json()["user"]["name"] == "bob"
        for headers in (
            encode_basic("bob", "wrong horse"),
            {"authorization": "Basic !"},
            {"authorization": f"Bearer {PASSWORD}"},
        ):
            assert http.get("api/v1/overview", headers=headers).status_code == 401
        # The browser would send such a header by itself, so it does not replace the other checks.
        answer = http.post("api/v1/login", headers=encode_basic("bob", PASSWORD), json={})
        assert (answer.status_code, answer.json()["code"]) == (403, "csrf")


def test_attempts_to_sign_in_are_limited(database: TestDatabase) -> None:
    with open_dashboard(database, login={"password": PASSWORD}) as board:
        caller = board.call()
        codes = [attempt(caller, password=f"guess number {each}").status_code for each in range(8)]
        assert codes == [401] * 5 + [429] * 3
        answer = attempt(caller, password=PASSWORD)
        assert answer.json()["code"] == "too_many_attempts"
        assert 0 < int(answer.headers["retry-after"]) <= 60
        basic = caller.http.get("api/v1/overview", headers=encode_basic("x", PASSWORD))
        assert basic.status_code == 429


def is_throttled(throttle: Throttle, peer: str) -> bool:
    try:
        throttle.check(peer)
    except Problem:
        return True
    return False


def test_failed_attempts_do_not_lock_out_other_addresses() -> None:
    now = [0.0]
    throttle = Throttle(clock=lambda: now[0])
    for number in range(20_000):
        throttle.record_failure(f"10.{number // 250 // 250}.{number // 250 % 250}.{number % 250}")
    assert not is_throttled(throttle, "192.0.2.1")
    # While many fail, one attempt of each address is enough.
    throttle.record_failure("192.0.2.1")
    assert is_throttled(throttle, "192.0.2.1")
    now[0] = 61.0
    assert not is_throttled(throttle, "192.0.2.1")


def test_addresses_of_one_ipv6_network_share_their_attempts() -> None:
    throttle = Throttle()
    for number in range(5):
        throttle.record_failure(f"2001:db8::{number}")
        throttle.record_failure(f"::ffff:192.0.2.{number}")
    assert is_throttled(throttle, "2001:db8::ffff")
    assert not is_throttled(throttle, "2001:db8:0:1::1")
    assert not is_throttled(throttle, "192.0.2.1")


def test_short_passwords_and_tokens_are_rejected() -> None:
    for more in ({"password": "short"}, {"token": "too short"}, {"secret": "x", "token": TOKEN}):
        with pytest.raises(ConfigurationError, match="at least"):
            dashboard("x", **more)  # type: ignore[arg-type]


def test_two_ways_to_sign_in_exclude_each_other() -> None:
    with pytest.raises(ConfigurationError, match="exclude each other"):
        dashboard("x", authenticate=lambda request: None, password=PASSWORD)


# The host's function


def test_a_dashboard_without_a_way_to_sign_in_is_closed(database: TestDatabase) -> None:
    with (
        serve_asgi(dashboard(database.dsn, schema=database.schema)) as url,
        httpx.Client(base_url=url, trust_env=False) as http,
    ):
        page = http.get("")
        assert page.status_code == 403
        assert "authenticate" in page.text
        for path in ("session", "overview", "stream", "jobs", "missing"):
            answer = http.get(f"api/v1/{path}")
            assert (answer.status_code, answer.json()["code"]) == (403, "closed"), path
        assert http.get("healthz").text == "ok"


async def authenticate_async(request: Request) -> Any:
    return authenticate(request)


def authenticate(request: Request) -> Any:
    name = request.headers.get("x-test-user")
    if name == "redirect":
        return RedirectResponse("/login?next=/")
    if name == "broken":
        return "ann"
    return None if name is None else User(name, "operator")


def test_a_function_of_the_host_knows_people(database: TestDatabase) -> None:
    for function in (authenticate, authenticate_async):
        board = dashboard(database.dsn, schema=database.schema, authenticate=function)
        with (
            serve_asgi(board) as url,
            httpx.Client(base_url=url, trust_env=False) as http,
        ):

            def ask(path: str, user: str | None = None, *, http: httpx.Client = http) -> Any:
                return http.get(path, headers={} if user is None else {"x-test-user": user})

            session = ask("api/v1/session", "ann").json()
            assert session["user"]["name"] == "ann"
            assert "delete" not in session["user"]["permissions"]
            assert session["login"] == []
            assert ask("", "ann").is_success
            assert ask("").status_code == 403
            assert ask("api/v1/overview").status_code == 401
            assert ask("", "redirect").headers["location"] == "/login?next=/"
            assert ask("api/v1/overview", "redirect").status_code == 401
            assert ask("api/v1/overview", "broken").status_code == 500
            # A user of the host gets a token against forgery too, which is not that of another.
            other = ask("api/v1/session", "bob").json()["csrf"]
            assert session["csrf"] != other


def test_a_user_of_the_host_cannot_sign_in_here(database: TestDatabase) -> None:
    board = dashboard(database.dsn, schema=database.schema, authenticate=authenticate)
    with serve_asgi(board) as url:
        caller = Caller(url)
        answer = attempt(caller, token=TOKEN)
        assert answer.status_code == 404
        caller.close()


# A proxy


def test_only_a_trusted_proxy_names_the_user(database: TestDatabase) -> None:
    header = "x-forwarded-user"
    for networks, is_trusted in ((("127.0.0.1/32",), True), (("10.0.0.0/8",), False)):
        login = {"user_header": header}
        with open_dashboard(database, login=login, trusted_proxies=networks) as board:
            http = board.call().http
            answer = http.get("api/v1/session", headers={header: "ann"})
            assert (answer.json()["user"] is not None) is is_trusted
            assert http.get("api/v1/overview").status_code == 401
            assert http.get("", headers={}).status_code == 403
            twice = http.get("api/v1/session", headers=[(header, "ann"), (header, "root")])
            assert twice.json()["user"] is None


def test_a_header_with_the_user_needs_the_networks_of_the_proxy() -> None:
    for more in ({}, {"trusted_proxies": ()}):
        with pytest.raises(ConfigurationError, match="trusted_proxies"):
            dashboard("x", user_header="x-forwarded-user", **more)  # type: ignore[arg-type]
    assert dashboard("x", user_header="x-forwarded-user", trusted_proxies="10.0.0.0/8")


def build_request(client: tuple[str, int] | None, *headers: tuple[str, str]) -> Request:
    encoded = [(name.encode(), value.encode()) for name, value in headers]
    return Request({"type": "http", "client": client, "headers": encoded})


def test_a_unix_socket_is_trusted_only_by_its_name() -> None:
    for proxies, is_trusted in ((None, False), (("10.0.0.0/8",), False), (("unix",), True)):
        guard = RequestGuard(DashboardSettings(trusted_proxies=proxies))
        assert guard.trusts(build_request(None)) is is_trusted, proxies


def test_a_proxy_with_ipv4_is_trusted_on_a_dual_stack_socket() -> None:
    for networks, client, is_trusted in (
        (("10.0.0.0/8",), "::ffff:10.0.0.5", True),
        (("10.0.0.0/8",), "::ffff:11.0.0.5", False),
        (("10.0.0.0/8",), "::a00:5", False),
        (("::ffff:10.0.0.0/104",), "::ffff:10.0.0.5", True),
        (("::/0",), "::ffff:10.0.0.5", True),
        (None, "::ffff:127.0.0.1", True),
    ):
        guard = RequestGuard(DashboardSettings(trusted_proxies=networks))
        assert guard.trusts(build_request((client, 1))) is is_trusted, (networks, client)


def test_behind_a_proxy_with_https_an_error_names_the_options_that_are_missing() -> None:
    guard = RequestGuard(DashboardSettings())
    for origin, message in (
        ("https://jobs.example.com", "X-Forwarded-Proto, and pass --forwarded and --trusted-proxy"),
        ("https://evil.test", "another origin"),
        ("ftp://jobs.example.com", "another origin"),
        ("https://[", "another origin"),
    ):
        request = build_request(("10.0.0.5", 1), ("host", "jobs.example.com"), ("origin", origin))
        with pytest.raises(Problem, match=message) as raised:
            guard.check_origin(request)
        assert (raised.value.status, raised.value.code) == (403, "csrf")


def test_the_peer_is_the_last_forwarded_address() -> None:
    guard = RequestGuard(DashboardSettings(forwarded=True))
    name = "x-forwarded-for"
    for headers, peer in (
        ((), "127.0.0.1"),
        (((name, "1.1.1.1, 2.2.2.2"),), "2.2.2.2"),
        (((name, "1.1.1.1"), (name, "2.2.2.2")), "2.2.2.2"),
    ):
        assert guard.get_peer(build_request(("127.0.0.1", 1), *headers)) == peer


def test_forwarded_headers_count_only_with_the_option(database: TestDatabase) -> None:
    forwarded = {
        "x-forwarded-prefix": "/tools/jobs",
        "x-forwarded-host": "jobs.example.com",
        "x-forwarded-proto": "https",
    }
    cases: list[tuple[dict[str, Any], bool]] = [
        ({"forwarded": True}, True),
        ({}, False),
        ({"forwarded": True, "trusted_proxies": ("10.0.0.0/8",)}, False),
    ]
    for options, is_used in cases:
        options["allowed_hosts"] = ("jobs.example.com",)
        with open_dashboard(database, **options) as board:
            caller = board.call()
            base = '<base href="/tools/jobs/">' if is_used else '<base href="/">'
            assert base in caller.http.get("jobs", headers=forwarded).text
            caller.csrf = caller.get("session")["csrf"]
            own = "https://jobs.example.com" if is_used else board.url.rstrip("/")
            headers = {**forwarded, "origin": own}
            answer = caller.request("POST", "login", {"token": TOKEN}, headers=headers)
            assert answer.is_success
            cookie = answer.headers["set-cookie"].lower()
            assert ("path=/tools/jobs/" in cookie) is is_used
            assert ("secure" in cookie) is is_used


def test_a_prefix_that_would_leave_the_page_is_ignored(database: TestDatabase) -> None:
    with open_dashboard(database, forwarded=True) as board:
        http = board.call().http
        for prefix in ("//evil.test", 'x"><script>', "/a//b", "https://evil.test", "/a b"):
            page = http.get("", headers={"x-forwarded-prefix": prefix}).text
            assert '<base href="/">' in page, prefix


# Streams end with the session


def read_events(caller: Caller, answer: httpx.Response) -> list[str]:
    return [line.removeprefix("event: ") for line in answer.iter_lines() if "event:" in line]


def test_a_stream_ends_when_its_session_ends(database: TestDatabase) -> None:
    with open_dashboard(database) as board:
        caller = board.sign_in()
        with caller.http.stream("GET", "api/v1/stream") as answer:
            caller.post("logout")
            assert read_events(caller, answer)[-1] == "bye"
    with open_dashboard(database, session_lifetime=timedelta(seconds=2)) as board:
        caller = board.sign_in()
        started_at = time.monotonic()
        with caller.http.stream("GET", "api/v1/stream") as answer:
            assert read_events(caller, answer)[-1] == "bye"
        assert time.monotonic() - started_at < 30
        assert caller.get("session")["user"] is None


def test_a_stream_ends_when_its_user_cannot_be_checked(database: TestDatabase) -> None:
    answers = iter([User("ann", "admin")])
    board = build_dashboard(
        database.dsn,
        Schemas.from_names(database.schema),
        DashboardSettings(),
        app=None,
        authenticate=lambda request: next(answers),
        timings=PollTimings(recheck=0.0),
    )
    with (
        serve_asgi(board) as url,
        closing(Caller(url)) as caller,
        caller.http.stream("GET", "api/v1/stream") as answer,
    ):
        assert read_events(caller, answer)[-1] == "bye"
