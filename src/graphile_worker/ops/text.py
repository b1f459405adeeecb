"""Text that several commands print: commands to type, counts, durations, errors."""

import shlex
from datetime import timedelta

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.storage import VacuumBlocker
from graphile_worker._support.durations import format_duration
from graphile_worker._support.text import pluralize
from graphile_worker.options import DEFAULT_SCHEMA
from graphile_worker.retries import BATCH_FAILURES

MAX_LINES = 5

# Durations beyond this come from infinite timestamps.
MAX_SECONDS = 1e10


def format_command(schemas: Schemas, subcommand: str, *arguments: str) -> str:
    """Format a `graphile-worker` command for a schema, quoted for a shell."""
    schema = [] if schemas.shared == DEFAULT_SCHEMA else ["--schema", schemas.shared]
    return " ".join(["graphile-worker", subcommand, *map(shlex.quote, [*schema, *arguments])])


def format_seconds(seconds: float | None) -> str:
    """Format a number of seconds as `6m12s`."""
    if seconds is None:
        return "?"
    return format_duration(timedelta(seconds=seconds)) if abs(seconds) < MAX_SECONDS else "ever"


def limit_lines(lines: list[str]) -> tuple[str, ...]:
    """Keep the first lines and append how many more there are."""
    if len(lines) <= MAX_LINES:
        return tuple(lines)
    return (*lines[:MAX_LINES], f"and {len(lines) - MAX_LINES:,} more")


def format_vacuum_blocker(blocker: VacuumBlocker) -> str:
    """Format the session, prepared transaction or slot that holds an old snapshot."""
    state = f", {blocker.state}" if blocker.state else ""
    since = "" if blocker.seconds is None else f" for {format_seconds(blocker.seconds)}"
    behind = pluralize(blocker.transactions, "transaction")
    return f"{blocker.kind} {blocker.name}{state}{since}, {behind} behind"


def summarize_error(error: str | None) -> str:
    """Return the line of an error that names the failure, for a batch with its first item."""
    first, _, rest = (error or "").strip().partition("\n")
    if first != BATCH_FAILURES:
        return first
    item = rest.partition("\n")[0]
    return f"{first} {item}"


def format_bytes(size: float) -> str:
    """Format a size, for people: `214 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if size >= 10 or unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
