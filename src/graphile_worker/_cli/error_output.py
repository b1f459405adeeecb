"""Errors of the command on standard error."""

import re

import click

from graphile_worker._cli.log_format import CONTINUATION_PREFIX
from graphile_worker._support.error_format import (
    HINT_PREFIX,
    format_import_traceback,
    format_one_line,
    get_hints,
    make_printable,
)
from graphile_worker.errors import CrontabError, GraphileWorkerError

# The start of psycopg's messages about failed connections. Those of libpq can be translated.
NO_CONNECTION_PATTERN = re.compile(r"connection (failed|is bad|timeout)|failed to resolve|\[Errno")


def is_expected(error: Exception) -> bool:
    """Return whether an error is printed as one line without a traceback."""
    # Imported for an error only, as every command waits for the imports.
    import psycopg

    return isinstance(error, GraphileWorkerError | psycopg.Error | TimeoutError)


def print_error(error: BaseException) -> None:
    """Print an error in one line, after the traceback of a module that cannot be imported."""
    if isinstance(error, CrontabError):
        for problem in error.problems:
            click.echo(make_printable(f"graphile-worker: {error.source}: {problem}"), err=True)
        return
    for line in format_import_traceback(error):
        click.echo(f"{CONTINUATION_PREFIX}{make_printable(line)}", err=True)
    text, hints = format_one_line(str(error)) or type(error).__name__, get_hints(error)
    if hints and (primary := getattr(getattr(error, "diag", None), "message_primary", None)):
        # Without the statements around it, so that the hint is visible.
        text = format_one_line(primary)
    line = "; ".join([text, *map(format_one_line, hints)])
    click.echo(f"graphile-worker: {line}{_build_connection_hint(error)}", err=True)


def _build_connection_hint(error: BaseException) -> str:
    """Return a hint for a failed connection, not for one that was lost later."""
    import psycopg

    if not isinstance(error, psycopg.OperationalError) or error.sqlstate is not None:
        return ""
    if not NO_CONNECTION_PATTERN.match(str(error)):
        return ""
    return (
        f"; {HINT_PREFIX}check host, port, user and database of the connection: "
        "`graphile-worker config` shows it and its source"
    )
