"""Words for whoever reads: a command to be typed, so many of something."""

import shlex

from graphile_worker.options import DEFAULT_SCHEMA
from graphile_worker.sql.identifiers import Schemas


def command(schemas: Schemas, words: str, *arguments: str) -> str:
    """A command of ours for that schema, to be typed."""
    given = [] if schemas.shared == DEFAULT_SCHEMA else ["--schema", schemas.shared]
    return " ".join(["graphile-worker", words, *map(shlex.quote, [*given, *arguments])])


def counted(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"
