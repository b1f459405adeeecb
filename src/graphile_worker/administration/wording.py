"""Words for whoever reads: a command to be typed, so many of something."""

import shlex

from graphile_worker.options import DEFAULT_SCHEMA
from graphile_worker.retries import BATCH_FAILURES
from graphile_worker.sql.identifiers import Schemas


def command(schemas: Schemas, words: str, *arguments: str) -> str:
    """A command of ours for that schema, to be typed."""
    given = [] if schemas.shared == DEFAULT_SCHEMA else ["--schema", schemas.shared]
    return " ".join(["graphile-worker", words, *map(shlex.quote, [*given, *arguments])])


def counted(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def headline(error: str | None) -> str:
    """The line of an error that says what went wrong; of a batch, with its first item."""
    first, _, rest = (error or "").strip().partition("\n")
    if first != BATCH_FAILURES:
        return first
    item = rest.partition("\n")[0]
    return f"{first} {item}"
