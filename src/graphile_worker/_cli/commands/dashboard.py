"""`graphile-worker dashboard`: a queue in the browser."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

from graphile_worker._cli.log_format import configure_logging
from graphile_worker._cli.settings.flags import current_queue_settings, setting_flags
from graphile_worker._cli.settings.layers import Settings
from graphile_worker._cli.settings.resolve import resolve_app, resolve_schema
from graphile_worker._db.conninfo import resolve_conninfo
from graphile_worker._sql.identifiers import Schemas
from graphile_worker.app import App
from graphile_worker.errors import ConfigurationError

EXTRA_PACKAGES = ("starlette", "uvicorn", "anyio", "h11")

ROLES = ("read-only", "operator", "admin")

MISSING_EXTRA = (
    "the dashboard needs more packages. Install them with pip install 'graphile-worker[dashboard]'."
)


@click.command()
@click.option(
    "--host",
    metavar="ADDRESS",
    default="127.0.0.1",
    help="Address to listen on (default: 127.0.0.1).",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    default=5680,
    help="Port to listen on (default: 5680).",
)
@click.option("--read-only", is_flag=True, help="Reject all changes.")
@click.option(
    "--role",
    type=click.Choice(ROLES),
    default="admin",
    help="Role of people who sign in (default: admin).",
)
@click.option(
    "--environment", metavar="NAME", help="Name in the header of each page (default: none)."
)
@click.option("--hide-payloads", is_flag=True, help="Do not show payloads and results.")
@click.option(
    "--trace-url", metavar="URL", help="Address of a trace, with {trace_id} (default: none)."
)
@click.option(
    "--allow-host",
    "allowed_hosts",
    multiple=True,
    metavar="HOST",
    help="Answer requests for this host too; repeatable.",
)
@click.option(
    "--root-path", metavar="PATH", default="", help="Path that a proxy serves it at (default: /)."
)
@click.option("--forwarded", is_flag=True, help="Trust X-Forwarded headers of trusted proxies.")
@click.option(
    "--trusted-proxy",
    "trusted_proxies",
    multiple=True,
    metavar="NETWORK",
    help="Trusted proxy; repeatable (default: loopback).",
)
@click.option(
    "--user-header",
    metavar="NAME",
    help="Header in which a proxy names the user (default: none).",
)
@click.option(
    "--open/--no-open",
    "is_opened",
    default=None,
    help="Open the browser (default: on a desktop).",
)
@setting_flags("connection", "schema", "ext_schema", "app", "prepared_statements", "log_format")
def dashboard(
    host: str,
    port: int,
    read_only: bool,
    role: str,
    environment: str | None,
    hide_payloads: bool,
    trace_url: str | None,
    allowed_hosts: tuple[str, ...],
    root_path: str,
    forwarded: bool,
    trusted_proxies: tuple[str, ...],
    user_header: str | None,
    is_opened: bool | None,
) -> None:
    """Show the queue in the browser.

    On a loopback address, it prints a link that signs you in. For other addresses, set
    GRAPHILE_WORKER_DASHBOARD_PASSWORD or GRAPHILE_WORKER_DASHBOARD_TOKEN, or pass --user-header.
    """
    settings = current_queue_settings()
    try:
        _run(
            settings,
            DashboardFlags(
                host=host,
                port=port,
                role=role,
                root_path=root_path,
                user_header=user_header,
                is_opened=is_opened,
                settings={
                    "environment": environment,
                    "read_only": read_only,
                    "hide_payloads": hide_payloads,
                    "trace_url": trace_url,
                    "allowed_hosts": (*allowed_hosts, *_list_own_hosts(host)),
                    "forwarded": forwarded,
                    **({"trusted_proxies": trusted_proxies} if trusted_proxies else {}),
                },
            ),
        )
    except ImportError as error:
        missing = error if error.__cause__ is None else error.__cause__
        if (getattr(missing, "name", None) or "").partition(".")[0] not in EXTRA_PACKAGES:
            raise
        raise ConfigurationError(MISSING_EXTRA) from None


@dataclass(frozen=True, kw_only=True, slots=True)
class DashboardFlags:
    """The flags of the command that are not settings of a worker."""

    host: str
    port: int
    role: str
    root_path: str
    user_header: str | None
    is_opened: bool | None
    settings: Mapping[str, Any]
    """Options of the dashboard."""


def _run(settings: Settings, flags: DashboardFlags) -> None:
    # Imported here, so that workers start without them, and because their packages are optional.
    from graphile_worker._cli import dashboard as server
    from graphile_worker.contrib.dashboard._auth import OneTimeLinks
    from graphile_worker.contrib.dashboard._dashboard import build_dashboard
    from graphile_worker.contrib.dashboard._server import serve
    from graphile_worker.contrib.dashboard._settings import DashboardSettings

    configure_logging(settings.command_options.log_format)
    secrets = server.Secrets.read()
    has_authentication = secrets.can_sign_in or flags.user_header is not None
    server.check_address(flags.host, has_authentication=has_authentication)
    app = resolve_app(settings)
    with server.listen(flags.host, flags.port) as listener:
        address = server.build_address(listener, flags.host, flags.root_path)
        is_opened = server.has_desktop() if flags.is_opened is None else flags.is_opened
        printer = server.LinkPrinter(address, is_opened=is_opened)
        links = None if has_authentication else OneTimeLinks(printer.announce)
        dashboard = build_dashboard(
            # A mistake ends the command now, not each request later.
            resolve_conninfo(settings.value("connection")),
            Schemas.from_names(resolve_schema(settings), settings.value("ext_schema")),
            DashboardSettings(**flags.settings),
            app=app if isinstance(app, App) else None,
            password=secrets.password,
            token=secrets.token,
            links=links,
            user_header=flags.user_header,
            role=flags.role,
            secret=secrets.key,
            prepared_statements=settings.value("prepared_statements") is not False,
        )

        def announce() -> None:
            if links is None:
                click.echo(f"dashboard: {address}")
            else:
                links.renew()

        try:
            serve(
                dashboard,
                listener,
                root_path=server.normalize_root_path(flags.root_path),
                on_start=announce,
            )
        finally:
            printer.remove_file()


def _list_own_hosts(host: str) -> tuple[str, ...]:
    """Return the host as a name to allow, unless it is an address."""
    return () if ":" in host else (host,)
