"""The options of a dashboard."""

import ipaddress
import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta

from graphile_worker.errors import ConfigurationError

# Names of this machine. Requests with them are always allowed.
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")

ANY_HOST = "*"

# The networks whose `X-Forwarded-…` headers count, unless the settings name others.
LOOPBACK_NETWORKS = ("127.0.0.0/8", "::1/128")

# Stands for a proxy that connects by a Unix socket, which has no address.
UNIX_SOCKET = "unix"

# Keys of payloads whose values are masked.
DEFAULT_REDACT = (
    r"pass(word|wd|phrase|$)",
    "secret",
    "token",
    "authorization",
    "api_?key",
    "card",
)

ENVIRONMENT_LEVELS = {
    "production": ("prod", "production", "live"),
    "staging": ("staging", "stage", "preprod", "uat", "qa"),
    "development": ("dev", "development", "local", "test", "demo"),
}

MIN_QUERY_TIMEOUT = timedelta(milliseconds=100)

HOST_PATTERN = re.compile(r"\*|[A-Za-z0-9._-]+(:[0-9]+)?|\[[0-9A-Fa-f:.]+\](:[0-9]+)?")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, kw_only=True, slots=True)
class DashboardSettings:
    """The options of a dashboard, checked.

    Attributes:
        environment: Name of the environment in the header of each page, for example `production`.
        read_only: Reject all changes.
        hide_payloads: Do not send payloads and results to the browser.
        redact: Patterns of the keys of payloads whose values are masked.
        trace_url: Address of a trace, with `{trace_id}` in it.
        allowed_hosts: Names in the `Host` header that are answered, besides those of loopback. A
            leading dot, as in `.example.com`, allows a domain and its subdomains.
        forwarded: Trust the `X-Forwarded-…` headers of the proxies in `trusted_proxies`.
        trusted_proxies: Networks of these proxies, or `unix` (default: loopback).
        query_timeout: Time limit of each statement.
        session_lifetime: Time after which a person signs in again.
    """

    environment: str | None = None
    read_only: bool = False
    hide_payloads: bool = False
    redact: tuple[str, ...] = DEFAULT_REDACT
    trace_url: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    forwarded: bool = False
    trusted_proxies: tuple[str, ...] | None = None
    query_timeout: timedelta = timedelta(seconds=2)
    session_lifetime: timedelta = timedelta(hours=12)

    def __post_init__(self) -> None:
        for pattern in self.redact:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ConfigurationError(
                    f"redact has the invalid pattern {pattern!r}: {error}"
                ) from None
        for host in self.allowed_hosts:
            if not HOST_PATTERN.fullmatch(host):
                raise ConfigurationError(
                    f"{host!r} is not a host. Write a name such as jobs.example.com, with a port "
                    "if only that one is allowed, .example.com for a domain and its subdomains, "
                    "or * for all."
                )
        if self.query_timeout < MIN_QUERY_TIMEOUT:
            raise ConfigurationError("query_timeout must be at least 100 ms")
        if self.trace_url is not None and not self.trace_url.startswith(("https://", "http://")):
            raise ConfigurationError("trace_url must begin with https:// or http://")
        self.list_trusted_networks()

    def list_trusted_networks(self) -> list[Network]:
        """Return the networks of the proxies whose headers count."""
        proxies = LOOPBACK_NETWORKS if self.trusted_proxies is None else self.trusted_proxies
        try:
            return [
                ipaddress.ip_network(each, strict=False) for each in proxies if each != UNIX_SOCKET
            ]
        except ValueError as error:
            raise ConfigurationError(f"trusted_proxies: {error}") from None

    def require_trusted_proxies(self) -> None:
        """Check that the proxy that names people is known. Loopback may be any program.

        Raises:
            ConfigurationError: The settings do not name it.
        """
        if not self.trusted_proxies:
            raise ConfigurationError(
                "user_header needs the networks of your proxy, because any other client could "
                "send the header. Pass --trusted-proxy, in code trusted_proxies=[…]."
            )

    @property
    def environment_level(self) -> str:
        """How careful people must be: `production`, `staging`, `development` or `other`."""
        words = re.split(r"[^a-z]+", (self.environment or "").lower())
        levels = (
            level for level, names in ENVIRONMENT_LEVELS.items() if not set(names).isdisjoint(words)
        )
        return next(levels, "other")


def unmap_address(address: Address) -> Address:
    """Return the IPv4 address of a client that a dual-stack socket shows as `::ffff:10.0.0.5`."""
    mapped = None if isinstance(address, ipaddress.IPv4Address) else address.ipv4_mapped
    return address if mapped is None else mapped


def as_tuple(values: Collection[str] | str) -> tuple[str, ...]:
    """Return texts as a tuple. A single text counts as one."""
    return (values,) if isinstance(values, str) else tuple(values)
