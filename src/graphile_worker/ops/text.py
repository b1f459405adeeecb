"""Words for whoever reads: a command to be typed, so many of something."""

import shlex

from graphile_worker._sql.identifiers import Schemas
from graphile_worker.options import DEFAULT_SCHEMA
from graphile_worker.retries import BATCH_FAILURES


def format_command(schemas: Schemas, subcommand: str, *arguments: str) -> str:
    """A command of ours for that schema, to be typed."""
    given = [] if schemas.shared == DEFAULT_SCHEMA else ["--schema", schemas.shared]
    return " ".join(["graphile-worker", subcommand, *map(shlex.quote, [*given, *arguments])])


def pluralize(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def summarize_error(error: str | None) -> str:
    """The line of an error that says what went wrong; of a batch, with its first item."""
    first, _, rest = (error or "").strip().partition("\n")
    if first != BATCH_FAILURES:
        return first
    item = rest.partition("\n")[0]
    return f"{first} {item}"
