"""Connection strings: parsed, completed with defaults, and shown without secrets."""

import inspect
import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from psycopg import ConnectionInfo, OperationalError, ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from graphile_worker._support.error_format import format_error_line
from graphile_worker.errors import ConfigurationError

# A connection string, a function that returns one for each new connection, or None for the
# environment's.
ConninfoSource = str | Callable[[], str] | None

# Defaults of every connection that this package opens, so that an unreachable server does not block
# a program forever.
DEFAULT_SETTINGS = {
    "fallback_application_name": "graphile-worker",
    "connect_timeout": "10",
    # Detects a lost peer after about 10 s.
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}

# These override the connection string: the statements of this package are UTF-8.
FORCED_SETTINGS = {"client_encoding": "utf8"}

REDACTED = "***"

# With these sslmodes libpq may connect without TLS.
PLAINTEXT_SSLMODES = frozenset({"disable", "allow", "prefer"})
DEFAULT_SSLMODE = "prefer"

PORTS_PATTERN = re.compile(r"[0-9,]*")
# SQLAlchemy writes its driver into the scheme.
DRIVER_PATTERN = re.compile(r"(?<=^postgres)(ql)?\+\w+(?=://)")
BARE_NAME_PATTERN = re.compile(r"[^=@/:]+")


class Conninfo:
    """The connection string of a database, resolved when a connection needs it.

    A string is checked at once. The environment is read for the first connection. A function is
    called for each connection, because its password may expire.
    """

    def __init__(self, source: ConninfoSource) -> None:
        self._source = source
        self._resolved = resolve_conninfo(source) if isinstance(source, str) else None

    @property
    def is_function(self) -> bool:
        """Return whether a function is called for each connection. It may block."""
        return callable(self._source)

    def resolve(self) -> str:
        """Return the connection string of the next connection.

        Raises:
            ConfigurationError: No database is configured, or a function returned something else.
            OperationalError: A function raised an error.
        """
        if callable(self._source):
            return resolve_conninfo(self._source)
        if self._resolved is None:
            self._resolved = resolve_conninfo(self._source)
        return self._resolved


def resolve_conninfo(source: ConninfoSource) -> str:
    """Return the connection string: the argument, `DATABASE_URL`, or libpq's with PGDATABASE.

    A bare word is the name of a database, as in Graphile Worker for Node. The driver in a URL such
    as `postgresql+asyncpg://` is ignored.
    """
    conninfo = read_conninfo_source(source)
    if conninfo is not None and not conninfo.strip():
        # Probably an unset variable: another database would be wrong.
        raise ConfigurationError(
            "the connection string is empty. Pass one, or None to use DATABASE_URL."
        )
    # A secret from a file often ends with a newline, which would belong to the last setting.
    text = (conninfo or os.environ.get("DATABASE_URL") or "").strip()
    if text:
        return _build_conninfo(_parse_conninfo(text))
    if os.environ.get("PGDATABASE"):
        return _build_conninfo({})
    raise ConfigurationError(
        "no database configured. Pass a connection string, or set DATABASE_URL or PGDATABASE."
    )


def read_conninfo_source(source: ConninfoSource) -> str | None:
    """Return the connection string as it is given, or as the function returns it.

    Raises:
        ConfigurationError: The function returned something else.
        OperationalError: The function raised an error. A worker retries, as in an outage.
    """
    if not callable(source):
        return source
    try:
        conninfo: object = source()
    except Exception as error:
        raise OperationalError(
            f"the function for the connection string raised {format_error_line(error)}"
        ) from error
    if isinstance(conninfo, str):
        return conninfo
    if inspect.iscoroutine(conninfo):
        # Otherwise Python warns that it was never awaited.
        conninfo.close()
    raise ConfigurationError(
        f"the function for the connection string returned {type(conninfo).__qualname__}, "
        "expected a string"
    )


def redact_secrets(text: str) -> str:
    """Format a connection string for people: name=value pairs, with stars for passwords."""
    try:
        settings = _parse_conninfo(text)
    except ConfigurationError:
        return REDACTED
    # A password with a / or an @ is parsed as part of other settings.
    if "@" in str(settings.get("dbname", "")) or not PORTS_PATTERN.fullmatch(
        str(settings.get("port", ""))
    ):
        return REDACTED
    return make_conninfo(
        "", **{name: _redact_value(name, value) for name, value in settings.items()}
    )


def find_plaintext_risk(info: ConnectionInfo) -> str | None:
    """Return host and sslmode of a connection to another machine that does not require TLS.

    Return None if the connection stays on this machine or always uses encryption.
    """
    settings = info.get_parameters()
    sslmode = settings.get("sslmode", DEFAULT_SSLMODE)
    if sslmode not in PLAINTEXT_SSLMODES or settings.get("gssencmode") == "require":
        return None
    return None if _is_local(info.host, info.hostaddr) else f"host={info.host}, sslmode={sslmode}"


def _is_local(host: str, address: str) -> bool:
    """Return whether it is a Unix socket or a loopback address."""
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
            "the connection string is invalid: expected postgres://user@host/database "
            "or host=… dbname=…"
        ) from None
    if "@" in str(settings.get("host", "")):
        raise ConfigurationError(
            "the host in the connection string contains an @. Write an @ of a password as %40."
        )
    return settings


def _build_conninfo(settings: Mapping[str, Any]) -> str:
    defaults = dict(DEFAULT_SETTINGS)
    if os.environ.get("PGCONNECT_TIMEOUT"):
        del defaults["connect_timeout"]
    return make_conninfo("", **{**defaults, **settings, **FORCED_SETTINGS})
