"""A dashboard below a path: in Starlette, FastAPI and Django, and behind a proxy."""

import asyncio
import signal
import sys
from contextlib import closing
from pathlib import Path
from textwrap import dedent
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from graphile_worker import App
from graphile_worker.contrib.dashboard import Dashboard, Permission, dashboard
from tests.conftest import TestDatabase
from tests.support.dashboard import TOKEN, Caller, serve_asgi
from tests.support.processes import Programs, eventually

# The nightly matrix runs it on the other versions of Python and PostgreSQL.
pytestmark = pytest.mark.single_version


@pytest.fixture
def board(module_database: TestDatabase) -> Dashboard:
    app = App(module_database.dsn, schema=module_database.schema)
    return dashboard(app, token=TOKEN)


def check_board(url: str, *, base: str) -> None:
    """Check pages, files, the API and the stream of a dashboard at an address."""
    caller = Caller(url)
    try:
        for page in ("", "jobs", "queues/a%2Fb"):
            answer = caller.http.get(page)
            assert answer.is_success, page
            assert f'<base href="{base}">' in answer.text
        assert (
            caller.http.get("static/vendor/preact.js")
            .headers["content-type"]
            .startswith("text/javascript")
        )
        cookie = caller.sign_in().http.cookies.jar
        assert [each.path for each in cookie] == [base]
        assert caller.get("overview")["version"]
        assert caller.get("session")["features"]["app"] is not None
        # A name with a slash is one part of the path.
        paused = caller.post("queues/a%2Fb/pause", {"reason": "test"})
        assert paused["paused"]["by"] == "dashboard"
        names = [each["name"] for each in caller.get("queues")["queues"]]
        assert "a/b" in names
        caller.post("queues/a%2Fb/resume")
        with caller.http.stream("GET", "api/v1/stream") as stream:
            lines = stream.iter_lines()
            assert next(lines) == "retry: 3000"
        caller.post("logout")
        assert not list(caller.http.cookies.jar)
    finally:
        caller.close()


def test_a_dashboard_can_be_mounted_in_starlette(board: Dashboard) -> None:
    app = Starlette(routes=[Mount("/internal", routes=[Mount("/jobs", app=board)])])
    with serve_asgi(app, dashboards=[board]) as url:
        check_board(f"{url}internal/jobs/", base="/internal/jobs/")
        redirect = httpx.get(f"{url}internal/jobs", trust_env=False)
        assert redirect.headers["location"].endswith("/internal/jobs/")


def test_one_dashboard_serves_several_event_loops(board: Dashboard) -> None:
    with serve_asgi(board) as first_url:
        first = Caller(first_url).sign_in()
        overview = first.get("overview")
        [(service, _)] = board._served.values()
        with serve_asgi(board) as second_url:
            second = Caller(second_url).sign_in()
            assert second.get("overview")["version"]
            assert len(board._served) == 2
            second.close()
        # The end of the second server leaves the first one alone.
        assert [each for each, _ in board._served.values()] == [service]
        assert first.get("overview")["version"] >= overview["version"]
        asyncio.run(board.aclose())
        assert not board._served
        assert not service.poller.is_running
        assert first.get("overview")["version"]
        first.close()


def test_a_dashboard_can_be_mounted_in_fastapi(board: Dashboard) -> None:
    app = FastAPI()
    app.mount("/jobs", board)
    with serve_asgi(app, dashboards=[board]) as url:
        check_board(f"{url}jobs/", base="/jobs/")


def test_a_proxy_may_remove_the_path_or_leave_it(board: Dashboard) -> None:
    async def below(scope: Any, receive: Any, send: Any) -> None:
        await board({**scope, "root_path": "/tools/jobs"}, receive, send)

    async def stripped(scope: Any, receive: Any, send: Any) -> None:
        prefix = "/tools/jobs"
        if scope["type"] == "http":
            path, raw = scope["path"].removeprefix(prefix), scope["raw_path"]
            raw = raw.removeprefix(prefix.encode())
            scope = {**scope, "path": path, "raw_path": raw, "root_path": prefix}
        await board(scope, receive, send)

    for app in (below, stripped):
        with serve_asgi(app, dashboards=[board], lifespan="off") as url:
            check_board(f"{url}tools/jobs/", base="/tools/jobs/")


def test_a_dashboard_closes_its_connections(board: Dashboard) -> None:
    closed: list[bool] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == "/close":
            await board.aclose()
            closed.append(True)
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body"})
        else:
            await board(scope, receive, send)

    with serve_asgi(app, dashboards=[board], lifespan="off") as url:
        caller = Caller(url).sign_in()
        assert caller.get("overview")
        caller.http.get("close")
        # A later request opens it again.
        assert caller.get("overview")
        caller.close()
    assert closed == [True]


DJANGO_SETTINGS = """
    SECRET_KEY = "for-tests"
    ALLOWED_HOSTS = ["*"]
    ROOT_URLCONF = "urls"
    INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes",
                      "django.contrib.sessions"]
    MIDDLEWARE = ["django.contrib.sessions.middleware.SessionMiddleware",
                  "django.contrib.auth.middleware.AuthenticationMiddleware"]
    DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "users.sqlite3"}}
    DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
"""

DJANGO_URLS = """
    from django.contrib.auth import get_user_model, login
    from django.http import HttpResponse
    from django.urls import path

    def sign_in(request):
        user = get_user_model().objects.get(username=request.GET["name"])
        login(request, user)
        return HttpResponse("ok")

    urlpatterns = [path("sign-in", sign_in)]
"""

DJANGO_ASGI = """
    import os

    os.environ["DJANGO_SETTINGS_MODULE"] = "settings"

    from django.core.asgi import get_asgi_application

    django = get_asgi_application()

    from importlib import import_module

    from asgiref.sync import sync_to_async
    from django.conf import settings
    from django.contrib.auth import get_user
    from django.db import close_old_connections
    from django.http import HttpRequest

    from graphile_worker.contrib.dashboard import User, dashboard

    PREFIX = "/jobs"

    @sync_to_async
    def authenticate(request):
        close_old_connections()
        try:
            django_request = HttpRequest()
            engine = import_module(settings.SESSION_ENGINE)
            key = request.cookies.get(settings.SESSION_COOKIE_NAME)
            django_request.session = engine.SessionStore(key)
            user = get_user(django_request)
            if not user.is_staff:
                return None
            return User(user.get_username(), "admin" if user.is_superuser else "read-only")
        finally:
            close_old_connections()

    jobs = dashboard(os.environ["QUEUE_DSN"], schema=os.environ["QUEUE_SCHEMA"],
                     authenticate=authenticate)

    async def application(scope, receive, send):
        path = scope.get("path", "")
        if scope["type"] == "http" and (path == PREFIX or path.startswith(PREFIX + "/")):
            await jobs({**scope, "root_path": scope.get("root_path", "") + PREFIX}, receive, send)
        elif scope["type"] == "http":
            await django(scope, receive, send)
"""

DJANGO_USERS = """
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    from django.contrib.auth import get_user_model

    users = get_user_model().objects
    users.create(username="root", is_staff=True, is_superuser=True)
    users.create(username="ann", is_staff=True)
    users.create(username="eve")
"""


@pytest.mark.nightly
def test_a_dashboard_below_a_path_of_django_knows_its_users(
    database: TestDatabase, programs: Programs, tmp_path: Path
) -> None:
    for name, text in (
        ("settings", DJANGO_SETTINGS),
        ("urls", DJANGO_URLS),
        ("project", DJANGO_ASGI),
        ("users", DJANGO_USERS),
    ):
        (programs.folder / f"{name}.py").write_text(dedent(text))
    variables = {
        "DJANGO_SETTINGS_MODULE": "settings",
        "QUEUE_DSN": database.dsn,
        "QUEUE_SCHEMA": database.schema,
    }
    users = programs.start([sys.executable, "users.py"], variables)
    users.end(within=120)
    assert users.code == 0, users.err
    server = programs.start(
        [sys.executable, "-m", "uvicorn", "project:application", "--port", "0", "--no-access-log"],
        variables,
    )
    line = eventually(
        lambda: next((each for each in server.err.splitlines() if "http://" in each), None),
        "uvicorn listens",
        within=60,
    )
    assert line is not None
    url = line.partition("http://")[2].split()[0]
    people: dict[str | None, set[Permission] | None] = {
        "root": {*Permission},
        "ann": {Permission.VIEW},
        "eve": None,
        None: None,
    }
    for person, permissions in people.items():
        with closing(Caller(f"http://{url}/jobs/")) as caller:
            if person is not None:
                assert httpx_sign_in(caller, person).text == "ok"
            user = caller.get("session")["user"]
            assert (user and {*user["permissions"]}) == permissions
            assert caller.http.get("").status_code == (403 if permissions is None else 200)
            assert caller.request("GET", "overview").status_code == (401 if user is None else 200)


def httpx_sign_in(caller: Caller, name: str) -> httpx.Response:
    return caller.http.get(caller.url.removesuffix("jobs/") + "sign-in", params={"name": name})


HOST_APP = """
    import os

    from starlette.applications import Starlette
    from starlette.routing import Mount

    from graphile_worker.contrib.dashboard import User, dashboard

    board = dashboard(
        os.environ["DATABASE_URL"], authenticate=lambda request: User("ann", "admin")
    )
    app = Starlette(routes=[Mount("/jobs", app=board)])
"""


def test_uvicorn_of_the_host_stops_with_open_streams(programs: Programs) -> None:
    programs.write("project.py", HOST_APP)
    server = programs.start(
        [sys.executable, "-m", "uvicorn", "project:app", "--port", "0", "--no-access-log"], {}
    )
    line = server.wait_for_line("http://", within=60)
    url = f"http://{line.partition('http://')[2].split()[0]}/jobs/"
    with httpx.stream("GET", f"{url}api/v1/stream", trust_env=False, timeout=60) as answer:
        lines = answer.iter_lines()
        assert next(lines) == "retry: 3000"
        server.signal(signal.SIGTERM)
        assert 'data: {"reason": "server_stops"}' in list(lines)
    # By default, uvicorn waits for open connections without a limit.
    server.end(within=60)
