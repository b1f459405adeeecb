"""Which database is meant: a connection string, a bare name, or the environment."""

import ipaddress
import os
import re
from collections.abc import Mapping
from typing import Any

from psycopg import ConnectionInfo, ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from graphile_worker.errors import ConfigurationError

# Settings of every connection that we open ourselves, unless given: a server that says nothing must
# not hold a program up for ever.
DEFAULT_SETTINGS = {
    "fallback_application_name": "graphile-worker",
    "connect_timeout": "10",
    # A peer that vanished without a word is noticed after ten seconds or so.
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}

# And whatever is given: our statements are UTF-8.
FORCED_SETTINGS = {"client_encoding": "utf8"}

# What is shown in place of a secret.
REDACTED = "***"

# Values of sslmode with which libpq opens, or may open, a connection without TLS.
PLAINTEXT_SSLMODES = frozenset({"disable", "allow", "prefer"})
DEFAULT_SSLMODE = "prefer"

PORTS_PATTERN = re.compile(r"[0-9,]*")
# SQLAlchemy writes its driver into the scheme.
DRIVER_PATTERN = re.compile(r"(?<=^postgres)(ql)?\+\w+(?=://)")
BARE_NAME_PATTERN = re.compile(r"[^=@/:]+")


def resolve_conninfo(conninfo: str | None) -> str:
    """The connection string to use: given, `DATABASE_URL`, or libpq's own if PGDATABASE is set.

    A bare word is the name of a database, as in the reference. A driver in the scheme of a URL, as
    in `postgresql+asyncpg://`, is ignored.
    """
    if conninfo is not None and not conninfo.strip():
        # Most likely a variable that is not set: no other database will do instead.
        raise ConfigurationError("the connection string is empty")
    # A file with a secret often ends with a line end, which would belong to the last setting.
    text = (conninfo or os.environ.get("DATABASE_URL") or "").strip()
    if text:
        return _build_conninfo(_parse_conninfo(text))
    if os.environ.get("PGDATABASE"):
        return _build_conninfo({})
    raise ConfigurationError(
        "which database? Give a connection string, or set DATABASE_URL or PGDATABASE"
    )


def redact_secrets(text: str) -> str:
    """A connection string as it may be shown: name=value pairs, passwords replaced by stars."""
    try:
        settings = _parse_conninfo(text)
    except ConfigurationError:
        return REDACTED
    # A password with a / or an @ of its own ends up in other places.
    if "@" in str(settings.get("dbname", "")) or not PORTS_PATTERN.fullmatch(
        str(settings.get("port", ""))
    ):
        return REDACTED
    return make_conninfo(
        "", **{name: _redact_value(name, value) for name, value in settings.items()}
    )


def find_plaintext_risk(info: ConnectionInfo) -> str | None:
    """Host and sslmode of a connection to another machine that TLS is not required for.

    None if the connection stays on this machine, or cannot be plain text.
    """
    settings = info.get_parameters()
    sslmode = settings.get("sslmode", DEFAULT_SSLMODE)
    if sslmode not in PLAINTEXT_SSLMODES or settings.get("gssencmode") == "require":
        return None
    return None if _is_local(info.host, info.hostaddr) else f"host={info.host}, sslmode={sslmode}"


def _is_local(host: str, address: str) -> bool:
    """Is it a Unix socket, in a folder or without one, or an address of the machine itself?"""
    if host.startswith(("/", "@")):
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _redact_value(name: str, value: Any) -> Any:
    return REDACTED if "password" in name or "secret" in name else value


def _parse_conninfo(text: str) -> dict[str, Any]:
    if BARE_NAME_PATTERN.fullmatch(text):
        return {"dbname": text}
    try:
        settings = conninfo_to_dict(DRIVER_PATTERN.sub("", text, count=1))
    except ProgrammingError:
        # libpq quotes the string in its message, password included.
        raise ConfigurationError(
            "the connection string cannot be read: expected postgres://user@host/database "
            "or host=… dbname=…"
        ) from None
    if "@" in str(settings.get("host", "")):
        # The rest of a password with an @ of its own, which must be written %40.
        raise ConfigurationError(
            "the host in the connection string holds an @: write the @ of a password as %40"
        )
    return settings


def _build_conninfo(settings: Mapping[str, Any]) -> str:
    defaults = dict(DEFAULT_SETTINGS)
    if os.environ.get("PGCONNECT_TIMEOUT"):
        del defaults["connect_timeout"]
    return make_conninfo("", **{**defaults, **settings, **FORCED_SETTINGS})
