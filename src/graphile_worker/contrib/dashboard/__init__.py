"""A dashboard for a queue: is work flowing, and if not, why?

`dashboard(app)` is an ASGI application. Mount it in FastAPI, Starlette or Django, or run
`graphile-worker dashboard`.
"""

from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any

try:
    import starlette  # noqa: F401
except ImportError as error:
    raise ImportError(
        'the dashboard needs Starlette: pip install "graphile-worker[dashboard]"'
    ) from error

from graphile_worker._sql.identifiers import Schemas
from graphile_worker.app import App
from graphile_worker.contrib.dashboard._auth import Authenticate
from graphile_worker.contrib.dashboard._dashboard import Dashboard, build_dashboard
from graphile_worker.contrib.dashboard._settings import (
    DEFAULT_REDACT,
    DashboardSettings,
    as_tuple,
)
from graphile_worker.contrib.dashboard._users import Permission, Role, User
from graphile_worker.options import default_schema

__all__ = ["Dashboard", "Permission", "Role", "User", "dashboard"]


def dashboard(
    app: App[Any] | str | Callable[[], str] | None = None,
    *,
    authenticate: Authenticate | None = None,
    password: str | None = None,
    token: str | None = None,
    user_header: str | None = None,
    role: Role | str = Role.ADMIN,
    shard: str | None = None,
    schema: str | None = None,
    ext_schema: str | None = None,
    environment: str | None = None,
    read_only: bool = False,
    hide_payloads: bool = False,
    redact: Collection[str] = DEFAULT_REDACT,
    trace_url: str | None = None,
    allowed_hosts: Collection[str] = (),
    forwarded: bool = False,
    trusted_proxies: Collection[str] | None = None,
    secret: str | bytes | None = None,
    query_timeout: timedelta = timedelta(seconds=2),
    session_lifetime: timedelta = timedelta(hours=12),
    prepared_statements: bool | None = None,
) -> Dashboard:
    """Create a dashboard. It is closed until you say who may use it.

    Args:
        app: Your app, or a connection string, or a function that returns one (default:
            `DATABASE_URL`). With an app, the dashboard checks payloads by the signatures of its
            tasks.
        authenticate: Function that gets a Starlette request and returns a `User`, a `Response`
            such as a redirect to your login page, or None. It may be async.
        password: Let people sign in with this password.
        token: Let people sign in with this token.
        user_header: Header in which a trusted proxy names the person, for example
            `X-Forwarded-User`. It needs `trusted_proxies`.
        role: Role of people who sign in by `password`, `token` or `user_header`.
        shard: Name of the shard to show, if the app has several.
        schema: Schema of Graphile Worker (default: the app's, then `GRAPHILE_WORKER_SCHEMA`).
        ext_schema: Companion schema.
        environment: Name in the header of each page, for example `production`.
        read_only: Reject all changes.
        hide_payloads: Do not send payloads and results to the browser.
        redact: Patterns of the keys of payloads whose values are masked.
        trace_url: Address of a trace, with `{trace_id}` in it.
        allowed_hosts: Names in the `Host` header that are answered, besides those of loopback. A
            leading dot, as in `.example.com`, allows a domain and its subdomains.
            `*` allows all.
        forwarded: Trust the `X-Forwarded-…` headers of `trusted_proxies`.
        trusted_proxies: Networks of your proxies, or `unix` for one that connects by a Unix
            socket (default: loopback). Do not let your server rewrite the address of the client.
        secret: Key of session cookies, for several processes (default: random).
        query_timeout: Time limit of each statement.
        session_lifetime: Time after which people sign in again.
        prepared_statements: Turn this off behind a pooler that does not support them.

    Returns:
        An ASGI application.

    Raises:
        ConfigurationError: An argument is invalid, or two ways to sign in exclude each other.
    """
    settings = DashboardSettings(
        environment=environment,
        read_only=read_only,
        hide_payloads=hide_payloads,
        redact=as_tuple(redact),
        trace_url=trace_url,
        allowed_hosts=as_tuple(allowed_hosts),
        forwarded=forwarded,
        trusted_proxies=None if trusted_proxies is None else as_tuple(trusted_proxies),
        query_timeout=query_timeout,
        session_lifetime=session_lifetime,
    )
    named = app if isinstance(app, App) else None
    chosen = schema or (None if named is None else named.schema) or default_schema()
    if prepared_statements is None:
        prepared_statements = named is None or named._prepared_statements
    return build_dashboard(
        app._get_dsn(shard) if isinstance(app, App) else app,
        Schemas.from_names(chosen, ext_schema),
        settings,
        app=named,
        authenticate=authenticate,
        password=password,
        token=token,
        user_header=user_header,
        role=role,
        secret=secret,
        prepared_statements=prepared_statements,
    )
