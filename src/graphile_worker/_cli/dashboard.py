"""What `graphile-worker dashboard` needs around the server: secrets, an address, and links."""

import html
import ipaddress
import os
import socket
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from graphile_worker._cli.http_server import open_listener
from graphile_worker.errors import ConfigurationError

ADDRESS_FLAGS = "--port or --host"

OPEN_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={link}"></head>
<body><a href="{link}">Open the dashboard</a></body>
</html>
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Secrets:
    """What people sign in with, and the key of cookies. Only environment variables contain them."""

    password: str | None = None
    token: str | None = None
    key: str | None = None

    @classmethod
    def read(cls) -> "Secrets":
        """Read the environment. An empty variable counts as not set."""
        return cls(
            password=os.environ.get("GRAPHILE_WORKER_DASHBOARD_PASSWORD") or None,
            token=os.environ.get("GRAPHILE_WORKER_DASHBOARD_TOKEN") or None,
            key=os.environ.get("GRAPHILE_WORKER_DASHBOARD_SECRET") or None,
        )

    @property
    def can_sign_in(self) -> bool:
        """Whether people can sign in with them."""
        return self.password is not None or self.token is not None


def check_address(host: str, *, has_authentication: bool) -> None:
    """Reject an address that other machines reach, unless people must sign in.

    Raises:
        ConfigurationError: A password, a token and a proxy are missing.
    """
    if not has_authentication and not is_loopback(host):
        raise ConfigurationError(
            f"other machines can reach {host}, so people must sign in. Set "
            "GRAPHILE_WORKER_DASHBOARD_PASSWORD or "
            "GRAPHILE_WORKER_DASHBOARD_TOKEN, or pass --user-header."
        )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@contextmanager
def listen(host: str, port: int) -> Iterator[socket.socket]:
    """Open the socket of the server.

    Raises:
        ConfigurationError: If the address cannot be used.
    """
    with open_listener(host, port, ADDRESS_FLAGS) as listener:
        yield listener


def build_address(listener: socket.socket, host: str, root_path: str) -> str:
    """Return the address for the browser."""
    port = listener.getsockname()[1]
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}{normalize_root_path(root_path)}/"


def normalize_root_path(root_path: str) -> str:
    """Return a path that begins with a slash and does not end with one, or nothing."""
    path = root_path.strip("/")
    return f"/{path}" if path else ""


class LinkPrinter:
    """Prints links that sign a person in, and opens the first one in the browser.

    Only a terminal gets more than the first one, so that logs do not contain a valid link.
    """

    def __init__(self, address: str, *, is_opened: bool) -> None:
        self._address = address
        self._is_opened = is_opened
        self._file: Path | None = None
        self._is_first = True

    def announce(self, token: str) -> None:
        """Print the link with a token."""
        link = f"{self._address}#token={token}"
        if self._is_first:
            click.echo(f"dashboard: {link}")
        elif sys.stdout.isatty():
            click.echo(f"the link was used; link for the next browser: {link}")
        else:
            click.echo("the link was used. Restart the command to get another one.")
        sys.stdout.flush()
        if self._is_first and self._is_opened:
            self._open(link)
        self._is_first = False

    def remove_file(self) -> None:
        """Remove the page that led the browser to the link."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    def _open(self, link: str) -> None:
        # Other users of the machine see the arguments of processes, so the browser gets a file that
        # only this user can read.
        with tempfile.NamedTemporaryFile("w", suffix=".html", delete=False) as file:
            file.write(OPEN_PAGE.format(link=html.escape(link, quote=True)))
        self._file = Path(file.name)
        webbrowser.open(self._file.as_uri())


def has_desktop() -> bool:
    """Return whether a browser can be opened for the person at this terminal."""
    if not sys.stdout.isatty() or os.environ.get("SSH_CONNECTION"):
        return False
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
