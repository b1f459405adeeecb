"""The dashboard as one ASGI application, and how its parts are built."""

import asyncio
from contextlib import suppress
from typing import Any

from starlette.types import Receive, Scope, Send

from graphile_worker._db.conninfo import ConninfoSource
from graphile_worker._sql.identifiers import Schemas
from graphile_worker.app import App
from graphile_worker.contrib.dashboard._app import Application
from graphile_worker.contrib.dashboard._auth import (
    Authenticate,
    Authentication,
    ClosedAuthentication,
    HostAuthentication,
    LoginAuthentication,
    OneTimeLinks,
    ProxyAuthentication,
    Sessions,
    make_key,
)
from graphile_worker.contrib.dashboard._openapi import build_openapi_route
from graphile_worker.contrib.dashboard._poller import DEFAULT_TIMINGS, PollTimings
from graphile_worker.contrib.dashboard._resources import ROUTES
from graphile_worker.contrib.dashboard._security import RequestGuard
from graphile_worker.contrib.dashboard._service import Service
from graphile_worker.contrib.dashboard._settings import DashboardSettings
from graphile_worker.contrib.dashboard._users import Role
from graphile_worker.errors import ConfigurationError

# How long the end of one event loop waits for connections of another one.
CLOSE_SECONDS = 10.0

ALL_ROUTES = (*ROUTES, build_openapi_route(ROUTES))


class Dashboard:
    """An ASGI application that shows a queue. `dashboard()` creates it.

    It needs no lifespan events: it connects with the first request, and stops looking at the queue
    30 s after the last viewer.
    """

    def __init__(
        self,
        conninfo: ConninfoSource,
        schemas: Schemas,
        settings: DashboardSettings,
        *,
        app: App[Any] | None,
        prepared_statements: bool,
        authentication: Authentication,
        sessions: Sessions,
        guard: RequestGuard,
        timings: PollTimings,
    ) -> None:
        self._conninfo = conninfo
        self._schemas = schemas
        self._settings = settings
        self._app = app
        self._prepared_statements = prepared_statements
        self._authentication = authentication
        self._sessions = sessions
        self._guard = guard
        self._timings = timings
        # Connections work only in the loop that opened them.
        self._served: dict[asyncio.AbstractEventLoop, tuple[Service, Application]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, by the ASGI specification."""
        match scope["type"]:
            case "http":
                await self._get_application()(scope, receive, send)
            case "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1000})
            case "lifespan":
                await self._run_lifespan(receive, send)

    def end_streams(self) -> None:
        """End the streams of all browsers, so that the server can stop.

        Call this in the event loop of the server. With uvicorn, it happens by itself.
        """
        for loop, (service, _) in list(self._served.items()):
            if loop is asyncio.get_running_loop():
                service.events.stop()
            elif loop.is_running():
                loop.call_soon_threadsafe(service.events.stop)

    async def aclose(self) -> None:
        """End the streams, stop looking at the queue, and close the connections."""
        for loop in list(self._served):
            await self._close_in(loop)

    async def _close_in(self, loop: asyncio.AbstractEventLoop) -> None:
        service, _ = self._served.pop(loop, (None, None))
        if service is None:
            return
        if loop is asyncio.get_running_loop():
            await service.close()
        elif loop.is_running():
            closing = asyncio.run_coroutine_threadsafe(service.close(), loop)
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await asyncio.wrap_future(closing)

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                # Another server may use this dashboard in its own loop.
                await self._close_in(asyncio.get_running_loop())
                await send({"type": "lifespan.shutdown.complete"})
                return
            await send({"type": "lifespan.startup.complete"})

    def _get_application(self) -> Application:
        loop = asyncio.get_running_loop()
        if loop not in self._served:
            self._served = {
                each: found for each, found in self._served.items() if not each.is_closed()
            }
            service = Service(
                self._conninfo,
                self._schemas,
                self._settings,
                app=self._app,
                prepared_statements=self._prepared_statements,
                timings=self._timings,
            )
            application = Application(
                service,
                ALL_ROUTES,
                authentication=self._authentication,
                sessions=self._sessions,
                guard=self._guard,
            )
            self._served[loop] = service, application
        return self._served[loop][1]


def build_dashboard(
    conninfo: ConninfoSource,
    schemas: Schemas,
    settings: DashboardSettings,
    *,
    app: App[Any] | None = None,
    authenticate: Authenticate | None = None,
    password: str | None = None,
    token: str | None = None,
    links: OneTimeLinks | None = None,
    user_header: str | None = None,
    role: Role | str = Role.ADMIN,
    secret: str | bytes | None = None,
    prepared_statements: bool = True,
    timings: PollTimings = DEFAULT_TIMINGS,
) -> Dashboard:
    """Build a dashboard from its options. See `dashboard()`."""
    if role not in set(Role):
        raise ConfigurationError(f"role must be one of {', '.join(Role)}, got {role!r}")
    sessions = Sessions(make_key(secret, password, token), settings.session_lifetime)
    guard = RequestGuard(settings)
    has_login = any(each is not None for each in (password, token, links))
    if sum((authenticate is not None, user_header is not None, has_login)) > 1:
        raise ConfigurationError(
            "authenticate, user_header and a password or token exclude each other. Pass one."
        )
    authentication: Authentication = ClosedAuthentication()
    if authenticate is not None:
        authentication = HostAuthentication(authenticate)
    elif user_header is not None:
        settings.require_trusted_proxies()
        authentication = ProxyAuthentication(user_header, role=role, trusts=guard.trusts)
    elif has_login:
        authentication = LoginAuthentication(
            sessions,
            token=token,
            password=password,
            links=links,
            role=role,
            get_peer=guard.get_peer,
        )
    return Dashboard(
        conninfo,
        schemas,
        settings,
        app=app,
        prepared_statements=prepared_statements,
        authentication=authentication,
        sessions=sessions,
        guard=guard,
        timings=timings,
    )
