"""`graphile-worker dashboard`: its link, its address, its signals and its messages."""

import re
import signal
import sys
import threading
from pathlib import Path

import httpx

from tests.support.dashboard import Caller
from tests.support.processes import Program, Programs, eventually

LINK = re.compile(r"(http://\S+/)#token=(\S+)")
ADDRESS = re.compile(r"dashboard: (http://\S+/)\n")
PASSWORD = "correct horse"


def start(programs: Programs, *flags: str, **variables: str | None) -> Program:
    return programs.command("dashboard", "--no-open", "--port", "0", *flags, **variables)


def find_link(program: Program) -> tuple[str, str]:
    found = eventually(lambda: LINK.search(program.out), "the link is printed")
    assert found is not None
    return found[1], found[2]


def find_address(program: Program) -> str:
    found = eventually(lambda: ADDRESS.search(program.out), "the address is printed")
    assert found is not None
    return found[1]


def test_dashboard_prints_a_link_that_signs_in_once(programs: Programs) -> None:
    program = start(programs, "--environment", "production", "--hide-payloads")
    url, token = find_link(program)
    assert url.startswith("http://127.0.0.1:")
    caller = Caller(url).sign_in(token)
    session = caller.get("session")
    assert session["environment"] == {"name": "production", "level": "production"}
    assert session["hide_payloads"]
    assert "view_payload" not in session["user"]["permissions"]
    assert caller.get("overview")["server"]["database"] == session["database"]
    again = Caller(url)
    again.csrf = again.get("session")["csrf"]
    assert again.request("POST", "login", {"token": token}).status_code == 401
    # A log gets no other link, so that it does not contain a valid one.
    eventually(lambda: "Restart the command to get another" in program.out, "the advice is printed")
    assert len(LINK.findall(program.out)) == 1
    assert token not in program.err
    caller.close()
    again.close()


def test_dashboard_stops_at_a_signal_with_open_streams(programs: Programs) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        program = start(programs)
        caller = Caller(find_link(program)[0]).sign_in(find_link(program)[1])
        events: list[str] = []
        opened = threading.Event()

        def read(
            caller: Caller = caller,
            events: list[str] = events,
            opened: threading.Event = opened,
        ) -> None:
            with caller.http.stream("GET", "api/v1/stream", timeout=60) as answer:
                for line in answer.iter_lines():
                    opened.set()
                    events.append(line)

        reader = threading.Thread(target=read)
        reader.start()
        assert opened.wait(30)
        program.signal(number)
        program.end(within=20)
        reader.join()
        assert program.code == 0
        assert 'data: {"reason": "server_stops"}' in events
        assert "dashboard stopped" in program.err
        caller.close()


def test_dashboard_needs_a_way_to_sign_in_off_loopback(programs: Programs) -> None:
    program = start(programs, "--host", "0.0.0.0")
    program.end()
    assert program.code == 1
    assert "people must sign in. Set GRAPHILE_WORKER_DASHBOARD_PASSWORD" in program.err
    protected = start(programs, "--host", "0.0.0.0", GRAPHILE_WORKER_DASHBOARD_PASSWORD=PASSWORD)
    url = find_address(protected).replace("0.0.0.0", "127.0.0.1")
    assert httpx.get(f"{url}api/v1/overview", trust_env=False).status_code == 401
    answer = httpx.get(f"{url}api/v1/session", auth=("ann", PASSWORD), trust_env=False)
    assert answer.json()["user"]["name"] == "ann"
    assert "token" not in protected.out
    assert "ignored GRAPHILE_WORKER_DASHBOARD_PASSWORD" not in protected.err


def test_dashboard_below_a_path(programs: Programs) -> None:
    program = start(programs, "--root-path", "tools/jobs/", "--read-only", "--role", "operator")
    url, token = find_link(program)
    assert url.endswith("/tools/jobs/")
    caller = Caller(url).sign_in(token)
    assert caller.get("session")["read_only"]
    assert caller.get("session")["user"]["permissions"] == ["view", "view_payload"]
    for page in (url, url.removesuffix("tools/jobs/")):
        assert '<base href="/tools/jobs/">' in caller.http.get(page).text
    caller.close()


def test_dashboard_shows_the_tasks_of_an_app(programs: Programs) -> None:
    programs.write(
        "shop.py",
        """
        from graphile_worker import App

        app = App()

        @app.task
        async def send_email(to: str, copies: int = 1) -> None: ...
        """,
    )
    url, token = find_link(start(programs, "--app", "shop:app"))
    caller = Caller(url).sign_in(token)
    assert caller.get("session")["features"]["app"]
    caller.close()


def test_mistakes_end_the_command(programs: Programs) -> None:
    listener = start(programs)
    port = find_link(listener)[0].rpartition(":")[2].strip("/")
    for flags, message in (
        (("--port", port), f"cannot listen on 127.0.0.1 port {port}"),
        (("--allow-host", "https://x.test"), "is not a host"),
        (("--trusted-proxy", "x"), "trusted_proxies"),
        (("--trace-url", "javascript:alert(1)"), "trace_url must begin with https://"),
        (("--role", "king"), "--role"),
    ):
        program = start(programs, *flags)
        program.end()
        assert program.code in (1, 2), flags
        assert message in program.err, flags
    short = start(programs, GRAPHILE_WORKER_DASHBOARD_PASSWORD="short")
    short.end()
    assert "must have at least 8 characters" in short.err


def test_a_missing_extra_is_named(programs: Programs, tmp_path: Path) -> None:
    programs.write("missing/starlette/__init__.py", "raise ModuleNotFoundError(name='starlette')")
    program = programs.without_fork.start(
        [sys.executable, "-m", "graphile_worker", "dashboard"],
        {"PYTHONPATH": str(programs.folder / "missing")},
    )
    program.end()
    assert program.code == 1
    assert "pip install 'graphile-worker[dashboard]'" in program.err
