"""Which database is meant: a connection string, a bare name, or the environment."""

import os
import re

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from graphile_worker.errors import ConfigurationError

# Settings of every connection that we open ourselves: our statements are UTF-8, whatever the caller
# is used to.
OURS = {"client_encoding": "utf8", "fallback_application_name": "graphile-worker"}

BARE_NAME = re.compile(r"[^=@/:]+")


def resolve(given: str | None) -> str:
    """The connection string to use: given, `DATABASE_URL`, or libpq's own if PGDATABASE is set.

    A bare word is the name of a database, as in the reference.
    """
    text = given or os.environ.get("DATABASE_URL")
    if text:
        return _parsed(text)
    if os.environ.get("PGDATABASE"):
        return make_conninfo("", **OURS)
    raise ConfigurationError(
        "which database? Give a connection string, or set DATABASE_URL or PGDATABASE"
    )


def _parsed(text: str) -> str:
    if BARE_NAME.fullmatch(text):
        return make_conninfo("", dbname=text, **OURS)
    try:
        settings = conninfo_to_dict(text)
    except ProgrammingError:
        # libpq quotes the string in its message, password included.
        raise ConfigurationError(
            "the connection string cannot be read: expected postgres://user@host/database "
            "or host=… dbname=…"
        ) from None
    return make_conninfo("", **{**settings, **OURS})
