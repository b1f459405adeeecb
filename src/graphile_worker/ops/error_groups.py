"""Group the errors of failing jobs: thousands of failures are often a few errors.

Jobs of one task belong together if their errors have the same first line and the same top frame,
apart from ids, numbers, quoted values and addresses. Only the newest failing jobs are read.
"""

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from hashlib import sha256

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.cron import get_server_time
from graphile_worker._sql.queries.search import get_scan_end, list_failing_jobs
from graphile_worker._sql.query import Plan, Row
from graphile_worker.jobs import parse_timestamp
from graphile_worker.ops.search import (
    DEFAULT_LIMITS,
    MAX_ID,
    MIN_ID,
    QueryLimits,
    with_limits,
)
from graphile_worker.ops.states import estimate_failed_at
from graphile_worker.ops.text import summarize_error

# Failing jobs to read, the newest first.
MAX_JOBS = 2_000

# Jobs that one statement reads, failing or not.
SCAN_SIZE = 50_000

# The search ends after this time, and its result is then not complete.
MAX_SECONDS = 1.5

FINGERPRINT_LENGTH = 16
MAX_SUMMARY_CHARS = 300

# Longer lines are cut: the rest seldom matters, and the patterns take longer on it.
MAX_LINE_CHARS = 500

# What differs between two failures of one kind, and the word that stands for it. In this order:
# an address contains numbers, and a quoted text contains anything.
_VARYING_PARTS = tuple(
    (re.compile(pattern, re.IGNORECASE), word)
    for pattern, word in (
        (r"(?<![a-z0-9+.-])[a-z][a-z0-9+.-]*://[^\s\"'<>]+", "<url>"),
        (r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+", "<email>"),
        (r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "<uuid>"),
        (r"\"(?:[^\"\\]|\\.)*\"", "<text>"),
        # An apostrophe inside a word is not a quote.
        (r"(?<!\w)'(?:[^'\\]|\\.)*'(?!\w)", "<text>"),
        (r"`[^`]*`", "<text>"),
        (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?", "<time>"),
        (r"\b0x[0-9a-f]+\b", "<hex>"),
        # Letters and digits together, so that words of the letters a to f stay.
        (r"\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{6,}\b", "<hex>"),
        (r"(?<![\w.])[-+]?\d+(?:[.,:]\d+)*(?!\w)", "<n>"),
        # A number that is a part of a name, for example in job_17.
        (r"\d+", "<n>"),
    )
)

# Frames of Python and of JavaScript, without lines and columns, which change with each deployment.
_PYTHON_FRAME = re.compile(r'\s*File "([^"]+)", line \d+(?:, in (.+))?')
_JAVASCRIPT_FRAME = re.compile(r"\s*at (?:(.+) \()?([^\s()]+?)(?::\d+){0,2}\)?")
_FRAME_PARTS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorGroup:
    """Failing jobs of one task with the same error.

    Attributes:
        fingerprint: Name of the group, the same for the same error in every search.
        task_identifier: Name of the task, None if its row was deleted.
        summary: First line of the error, with words such as `<n>` for what differs.
        sample_id: The newest job of the group.
        sample_error: Its error. Of a long one, the start and the end.
        retrying: Number of jobs with attempts left, also those whose retry is due or runs.
        failed: Number of jobs that have permanently failed.
        first_at: Estimated time of the first of the last failures of these jobs.
        last_at: Estimated time of the last failure.
        ids: The jobs, the newest first.
    """

    fingerprint: str
    task_identifier: str | None
    summary: str
    sample_id: int
    sample_error: str
    retrying: int
    failed: int
    first_at: datetime
    last_at: datetime
    ids: tuple[int, ...] = field(repr=False)

    @property
    def jobs(self) -> int:
        """The number of jobs."""
        return len(self.ids)


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorGroups:
    """The groups with the most jobs first, and how far the search went.

    Attributes:
        now: The time of the database.
        groups: The groups.
        searched: Number of failing jobs that were read.
        is_complete: Whether these are all failing jobs.
    """

    now: datetime
    groups: tuple[ErrorGroup, ...]
    searched: int
    is_complete: bool

    def find(self, fingerprint: str) -> ErrorGroup | None:
        """Find a group.

        Args:
            fingerprint: Its fingerprint.
        """
        return next((each for each in self.groups if each.fingerprint == fingerprint), None)


def plan_group_errors(
    schemas: Schemas,
    *,
    max_jobs: int = MAX_JOBS,
    scan_size: int = SCAN_SIZE,
    max_seconds: float = MAX_SECONDS,
    limits: QueryLimits = DEFAULT_LIMITS,
) -> Plan[ErrorGroups]:
    """Group the newest jobs whose last attempt failed by their errors.

    A job stays in its group until it succeeds, or until a person retries it.

    Args:
        schemas: The schemas of the queue.
        max_jobs: Read at most this number of failing jobs.
        scan_size: The number of jobs that one statement reads.
        max_seconds: Start no further statement after this time.
        limits: The timeouts of each statement.

    Returns:
        A plan for the groups.

    Raises:
        QueryTimeoutError: A statement took too long or waited too long for a lock.
    """
    started = time.monotonic()
    now = yield from with_limits(get_server_time(), schemas, limits)
    rows: list[Row] = []
    before, end = MAX_ID, None
    while True:
        end = yield from with_limits(get_scan_end(before, scan_size), schemas, limits)
        wanted = max_jobs + 1 - len(rows)
        query = list_failing_jobs(MIN_ID if end is None else end, before, wanted)
        rows += yield from with_limits(query, schemas, limits)
        if end is None or len(rows) > max_jobs or time.monotonic() - started > max_seconds:
            break
        before = end
    is_complete = end is None and len(rows) <= max_jobs
    chosen = rows[:max_jobs]
    return ErrorGroups(
        now=now,
        groups=tuple(_build_groups(chosen, now)),
        searched=len(chosen),
        is_complete=is_complete,
    )


def normalize_error(line: str) -> str:
    """Replace what differs between two failures of one kind: ids, numbers, quoted values.

    Args:
        line: The first line of an error.
    """
    line = line[:MAX_LINE_CHARS]
    for pattern, word in _VARYING_PARTS:
        line = pattern.sub(word, line)
    return " ".join(line.split())


def find_top_frame(error: str) -> str | None:
    """Find where an error was raised, as a function and the end of the path of its file.

    Args:
        error: The error with its traceback, of Python or JavaScript.
    """
    lines = [line for line in error.splitlines() if len(line) <= MAX_LINE_CHARS]
    frames = [frame for line in lines if (frame := _PYTHON_FRAME.fullmatch(line))]
    if frames:
        # The last frame is that of the line that raised the error.
        path, function = frames[-1].groups()
    else:
        calls = (frame for line in lines if (frame := _JAVASCRIPT_FRAME.fullmatch(line)))
        first = next(calls, None)
        if first is None:
            return None
        function, path = first.groups()
    name = "/".join(re.split(r"[/\\]", path)[-_FRAME_PARTS:])
    return f"{function or ''} {name}".strip()


# The same jobs are read again and again.
@lru_cache(maxsize=MAX_JOBS)
def build_fingerprint(task: str | None, error: str) -> str:
    """Build the name of the group of an error.

    Args:
        task: The task of the job.
        error: The error with its traceback.
    """
    parts = (task or "", normalize_error(summarize_error(error)), find_top_frame(error) or "")
    text = "\0".join(parts)
    return sha256(text.encode(errors="replace")).hexdigest()[:FINGERPRINT_LENGTH]


@dataclass(frozen=True, slots=True)
class _Failure:
    """A failing job."""

    id: int
    task: str | None
    is_failed: bool
    error: str
    failed_at: datetime


def _build_groups(rows: Sequence[Row], now: datetime) -> Iterator[ErrorGroup]:
    by_fingerprint: dict[str, list[_Failure]] = {}
    for row in rows:
        failure = _read_failure(row, now)
        fingerprint = build_fingerprint(failure.task, failure.error)
        by_fingerprint.setdefault(fingerprint, []).append(failure)
    groups = [_build_group(name, each) for name, each in by_fingerprint.items()]
    yield from sorted(groups, key=lambda group: (-group.jobs, -group.sample_id))


def _build_group(fingerprint: str, failures: Sequence[_Failure]) -> ErrorGroup:
    newest = failures[0]
    failed = sum(each.is_failed for each in failures)
    times = [each.failed_at for each in failures]
    summary = normalize_error(summarize_error(newest.error))
    return ErrorGroup(
        fingerprint=fingerprint,
        task_identifier=newest.task,
        summary=summary[:MAX_SUMMARY_CHARS] or "(no message)",
        sample_id=newest.id,
        sample_error=newest.error,
        retrying=len(failures) - failed,
        failed=failed,
        first_at=min(times),
        last_at=max(times),
        ids=tuple(each.id for each in failures),
    )


def _read_failure(row: Row, now: datetime) -> _Failure:
    id, task, is_failed, error, run_at, updated_at, attempts = row
    failed_at = estimate_failed_at(
        run_at=parse_timestamp(run_at),
        updated_at=parse_timestamp(updated_at),
        attempts=attempts,
        now=now,
        is_permanent=is_failed,
    )
    return _Failure(id, task, is_failed, error, failed_at)
