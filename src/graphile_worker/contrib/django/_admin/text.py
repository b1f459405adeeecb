"""Values as text for the pages: times, durations, payloads and errors."""

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils import timezone

from graphile_worker._support.durations import format_duration
from graphile_worker._support.error_format import make_printable
from graphile_worker.ops.search import ListedJob
from graphile_worker.ops.states import LOCKED_STATES, JobState
from graphile_worker.ops.text import summarize_error

# What a page shows of a payload, a result or an error.
MAX_CHARS = 20_000
# What a page shows of a name, a job key or the first line of an error.
MAX_LINE_CHARS = 500


@dataclass(frozen=True, slots=True)
class Block:
    """A text of several lines, and a note if it is shortened."""

    text: str
    note: str = ""

    @property
    def first_line(self) -> str:
        """Return the first line, which names the failure of an error."""
        return format_line(self.text.partition("\n")[0])

    @property
    def has_more(self) -> bool:
        """Return whether there is more than the first line."""
        return "\n" in self.text


def format_line(text: object) -> str:
    """Return one printable line, shortened."""
    line = str(text)
    if len(line) > MAX_LINE_CHARS:
        line = f"{line[:MAX_LINE_CHARS]}… ({len(line):,} characters)"
    return make_printable(line)


def format_sentence(text: str) -> str:
    """Return a reason as a sentence."""
    line = format_line(text)
    return line[:1].upper() + line[1:] + ("" if line.endswith((".", "?", "!", "…")) else ".")


def format_block(text: str) -> Block:
    """Return printable lines, shortened."""
    lines = text[:MAX_CHARS].replace("\r\n", "\n").split("\n")
    printable = "\n".join(map(make_printable, lines))
    if len(text) <= MAX_CHARS:
        return Block(printable)
    return Block(printable, f"The first {MAX_CHARS:,} of {len(text):,} characters.")


def format_json(text: str) -> Block:
    """Return JSON with indents, or its start as it is."""
    if len(text) > MAX_CHARS:
        return format_block(text)
    try:
        return format_block(json.dumps(json.loads(text), indent=2, ensure_ascii=False))
    except (ValueError, RecursionError):
        return format_block(text)


def format_error(error: str | None, *, can_view: bool) -> Block | None:
    """Return an error, or only its first line for users who may not view the rest."""
    if not error:
        return None
    if can_view:
        return format_block(error)
    line = summarize_error(error)
    note = "" if line == error.strip() else "Only the first line: the rest needs a permission."
    return Block(format_line(line), note)


def format_time(time: datetime | None) -> str:
    """Return a time in the zone of the project."""
    if time is None:
        return ""
    # The time of a job that is scheduled for infinity has no time in some zones.
    with suppress(OverflowError, ValueError):
        time = timezone.localtime(time)
    return f"{time:%Y-%m-%d %H:%M:%S %Z}"


def format_span(span: timedelta) -> str:
    """Return a duration. Clocks differ, so a negative one counts as none."""
    return format_duration(max(span, timedelta(0)))


def format_age(time: datetime | None, now: datetime) -> str:
    """Return how long ago a time was, or how far ahead it is."""
    if time is None:
        return ""
    if time > now:
        return f"in {format_span(time - now)}"
    return f"{format_span(now - time)} ago"


def format_when(job: ListedJob, now: datetime) -> str:
    """Return the time that matters in the state of a job."""
    if job.state in LOCKED_STATES:
        return f"for {format_span(now - (job.locked_at or now))}"
    if job.state in (JobState.RETRYING, JobState.SCHEDULED):
        return f"in {format_span(job.run_at - now)}"
    if job.state is JobState.FAILED:
        return f"failed {format_span(now - (job.failed_at or now))} ago"
    return f"due {format_span(now - job.run_at)} ago"


def join_names(names: Iterable[str], limit: int) -> str:
    """Return the first names, and how many more there are."""
    listed = list(names)
    text = ", ".join(map(format_line, listed[:limit]))
    return text if len(listed) <= limit else f"{text} and {len(listed) - limit:,} more"
