"""What handlers share: values of requests, checked, and jobs as the API shows them."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from graphile_worker._sql.queries.cron import get_server_time
from graphile_worker._support.durations import parse_duration
from graphile_worker.contrib.dashboard._api import ApiRequest, Problem
from graphile_worker.contrib.dashboard._redaction import Redactor
from graphile_worker.contrib.dashboard._users import Permission
from graphile_worker.contrib.dashboard._wording import capitalize, write_sentence
from graphile_worker.errors import FilterError
from graphile_worker.jobs import RunAt
from graphile_worker.ops.diagnostics.findings import Finding
from graphile_worker.ops.filters import (
    Filter,
    FilterField,
    Range,
    TextPattern,
    parse_filter,
    without_errors,
)
from graphile_worker.ops.history import EndedJob
from graphile_worker.ops.search import ListedJob, with_limits
from graphile_worker.ops.states import JobState

if TYPE_CHECKING:
    from graphile_worker.contrib.dashboard._poller import Sample
    from graphile_worker.contrib.dashboard._service import Service

T = TypeVar("T")

MAX_TEXT_CHARS = 4_000
MAX_FILTER_CHARS = 4_000
MAX_ERROR_CHARS = 64 * 1024
MAX_ID = 2**63 - 1

# A failure counts for this time, so that requests that wait do not all repeat it.
FAILURE_SECONDS = 2.0

# Answers to different questions that a cache keeps.
MAX_CACHED = 100

# Other filters search only among this number of newest jobs, unless the user asks for all.
NEWEST_JOBS = 200_000

ID_PATTERN = re.compile(r"-?[0-9]{1,19}")

EXAMPLE_TIME = "2026-08-01T10:00:00+00:00"

JOB_EXAMPLE: dict[str, Any] = {
    "id": "4711",
    "task": "send_email",
    "queue": None,
    "state": "failed",
    "priority": 0,
    "run_at": EXAMPLE_TIME,
    "attempts": 25,
    "max_attempts": 25,
    "error": "TimeoutError: no answer",
    "created_at": EXAMPLE_TIME,
    "key": None,
    "flags": [],
    "locked_at": None,
    "locked_by": None,
    "failed_at": EXAMPLE_TIME,
    "when": "≈ 3m ago",
    "tries": "25/25",
}

ENDED_JOB_EXAMPLE: dict[str, Any] = {
    "id": "4711",
    "task": "send_email",
    "queue": None,
    "state": "succeeded",
    "attempt": 1,
    "max_attempts": None,
    "created_at": EXAMPLE_TIME,
    "run_at": EXAMPLE_TIME,
    "started_at": EXAMPLE_TIME,
    "finished_at": EXAMPLE_TIME,
    "worker": "pypool-0123456789abcdef01",
    "error": None,
    "has_result": True,
    "run_seconds": 0.4,
    "wait_seconds": 0.1,
}


# Values of requests


def reject(detail: str, **more: object) -> Problem:
    """Return the answer to a request with a wrong value."""
    return Problem(400, "bad_request", detail, **more)


def read_text(
    values: Mapping[str, Any], name: str, *, max_chars: int = MAX_TEXT_CHARS
) -> str | None:
    """Return a text of a request that PostgreSQL can store, or None if it is missing or empty."""
    value = values.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise reject(f"{name} must be a text")
    if len(value) > max_chars:
        raise reject(f"{name} must have at most {max_chars:,} characters")
    check_storable(name, value)
    return value or None


def check_storable(name: str, value: str) -> str:
    """Return the text, or raise if PostgreSQL cannot store it."""
    if "\x00" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise reject(f"{name} contains a character that PostgreSQL cannot store")
    return value


def read_int(
    values: Mapping[str, Any], name: str, *, minimum: int, maximum: int, default: int | None = None
) -> int | None:
    """Return an integer of a request, which the query string has as text."""
    value = values.get(name)
    if value is None or value == "":
        return default
    if isinstance(value, str) and ID_PATTERN.fullmatch(value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
        raise reject(f"{name} must be an integer from {minimum:,} to {maximum:,}")
    return value


def read_limit(request: ApiRequest, *, default: int, maximum: int) -> int:
    """Return the size of a page."""
    limit = read_int(request.query, "limit", minimum=1, maximum=maximum, default=default)
    assert limit is not None
    return limit


def read_bool(values: Mapping[str, Any], name: str) -> bool:
    """Return a boolean of a request: JSON, or 1, true, 0 and false in the query string."""
    value = values.get(name)
    if value in (None, "", False) or value in ("0", "false"):
        return False
    if value is True or value in ("1", "true"):
        return True
    raise reject(f"{name} must be true or false")


def read_list(values: Mapping[str, Any], name: str, *, maximum: int) -> list[Any] | None:
    """Return a list of a request."""
    value = values.get(name)
    if value is None:
        return None
    if not isinstance(value, list):
        raise reject(f"{name} must be a list")
    if len(value) > maximum:
        raise reject(f"{name} must have at most {maximum:,} items")
    return value


def read_run_at(values: Mapping[str, Any], name: str = "run_at") -> RunAt | None:
    """Return a time in RFC 3339, or a delay such as 10m."""
    text = read_text(values, name)
    if text is None:
        return None
    delay = parse_duration(text)
    if delay is not None:
        return delay
    try:
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise reject(
            f"{name} must be a time such as 2026-08-01T10:00Z, or a delay such as 10m"
        ) from None


def read_path_text(request: ApiRequest, name: str) -> str:
    """Return a name in the path."""
    text = check_storable(name, request.path[name])
    if not text or len(text) > MAX_TEXT_CHARS:
        raise Problem(404, "not_found", f"{name} is not a name")
    return text


def read_job_id(request: ApiRequest) -> int:
    """Return the id of a job in the path."""
    text = request.path["id"]
    if not ID_PATTERN.fullmatch(text) or abs(int(text)) > MAX_ID:
        raise Problem(404, "not_found", "an id of a job is a number")
    return int(text)


def require(request: ApiRequest, permission: Permission) -> None:
    """Raise unless the user has a permission that depends on the values of the request."""
    if not request.user.may(permission):
        raise Problem(
            403, "forbidden", f"you need the permission {permission}", permission=str(permission)
        )


# Filters


def read_filter(request: ApiRequest, text: str | None, *, name: str = "q") -> Filter:
    """Parse a filter, and check that the user may search for all of it."""
    if text is not None and len(text) > MAX_FILTER_CHARS:
        raise reject(f"{name} must have at most {MAX_FILTER_CHARS:,} characters")
    try:
        job_filter = parse_filter(text or "")
    except FilterError as error:
        raise build_filter_problem(error, text or "") from error
    redactor = get_redactor(request.service)
    for term in job_filter.terms:
        if term.field is not FilterField.PAYLOAD:
            continue
        # A search reveals what a value is.
        if request.service.settings.hide_payloads:
            raise Problem(403, "forbidden", "this dashboard does not show or search payloads")
        require(request, Permission.VIEW_PAYLOAD)
        if any(redactor.matches(key) for key in term.path):
            key = ".".join(term.path)
            raise Problem(403, "forbidden", f"values of {key} are masked and cannot be searched")
    return limit_error_search(request, job_filter)


def limit_error_search(request: ApiRequest, job_filter: Filter) -> Filter:
    """Return a filter that does not find masked values of errors, unless the user may see them.

    Bare words then search tasks and job keys only.
    """
    if request.user.may(Permission.VIEW_PAYLOAD):
        return job_filter
    if any(term.field is FilterField.ERROR for term in job_filter.terms):
        raise Problem(
            403,
            "forbidden",
            f"you need the permission {Permission.VIEW_PAYLOAD} to search errors",
            permission=str(Permission.VIEW_PAYLOAD),
        )
    return without_errors(job_filter)


def build_filter_problem(error: FilterError, text: str) -> Problem:
    """Return the answer to a filter that cannot be parsed, with the place of the mistake."""
    position = max(0, min(error.column - 1, len(text)))
    length = min(len(error.got), len(text) - position)
    return Problem(
        400, "bad_filter", str(error), position=position, length=length, expected=error.expected
    )


def uses_index(job_filter: Filter) -> bool:
    """Return whether a filter finds its jobs by ids or job keys, in a table of any size."""
    return any(
        not term.is_negated and all(map(_is_exact, term.values))
        for term in job_filter.terms
        if term.field in (FilterField.ID, FilterField.KEY)
    )


def _is_exact(value: object) -> bool:
    if isinstance(value, TextPattern):
        return value.exact is not None
    return isinstance(value, Range) and value.low == value.high


def choose_newest(request: ApiRequest, job_filter: Filter) -> int | None:
    """Return among how many newest jobs to search, None for all."""
    if request.query.get("newest") == "all" or uses_index(job_filter):
        return None
    return read_int(request.query, "newest", minimum=1, maximum=10**9, default=NEWEST_JOBS)


# What the service knows


async def get_sample(request: ApiRequest) -> "Sample":
    """Return what the poller knows, or raise if the database is unreachable."""
    poller = request.service.poller
    sample = await poller.get()
    if sample is None:
        message = "the database is unreachable"
        raise Problem(
            503, "database_unreachable", message if poller.outage is None else poller.outage.message
        )
    return sample


async def get_now(request: ApiRequest) -> datetime:
    """Return the time of the database."""
    service = request.service
    return await service.read(with_limits(get_server_time(), service.schemas, service.limits))


_REDACTORS: "WeakKeyDictionary[Any, Redactor]" = WeakKeyDictionary()


def get_redactor(service: "Service") -> Redactor:
    """Return what masks the values of this dashboard."""
    redactor = _REDACTORS.get(service)
    if redactor is None:
        redactor = _REDACTORS[service] = Redactor(service.settings.redact)
    return redactor


class Cache:
    """Keeps an answer for a while, for all users of a service. One request computes it."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._entries: WeakKeyDictionary[Any, dict[Hashable, _CacheEntry]] = WeakKeyDictionary()

    async def get(
        self, service: "Service", compute: Callable[[], Awaitable[T]], key: Hashable = None
    ) -> T:
        """Return the answer to a question, computed if it is too old. A failure is kept too."""
        entries = self._entries.setdefault(service, {})
        entry = entries.get(key)
        if entry is None:
            while len(entries) >= MAX_CACHED:
                del entries[next(iter(entries))]
            entry = entries[key] = _CacheEntry(asyncio.Lock())
        async with entry.lock:
            if time.monotonic() >= entry.expires_at:
                try:
                    entry.value, entry.error = await compute(), None
                    entry.expires_at = time.monotonic() + self._seconds
                except Exception as error:
                    entry.error = error
                    entry.expires_at = time.monotonic() + FAILURE_SECONDS
            if entry.error is not None:
                raise entry.error
            value: T = entry.value
            return value

    def clear(self, service: "Service") -> None:
        """Forget all answers, after a change."""
        for entry in self._entries.get(service, {}).values():
            entry.expires_at = 0.0


class _CacheEntry:
    def __init__(self, lock: Any) -> None:
        self.lock = lock
        self.expires_at = 0.0
        self.value: Any = None
        self.error: Exception | None = None


# Answers


def show_job(job: ListedJob, redactor: Redactor) -> dict[str, Any]:
    """Return a job of a list."""
    return {
        "id": job.id,
        "task": job.task_identifier,
        "queue": job.queue_name,
        "state": job.state,
        "priority": job.priority,
        "run_at": job.run_at,
        "attempts": job.attempts,
        "max_attempts": job.max_attempts,
        "error": None if job.error is None else redactor.redact_text(job.error),
        "created_at": job.created_at,
        "key": job.key,
        "flags": job.flags,
        "locked_at": job.locked_at,
        "locked_by": job.locked_by,
        "failed_at": job.failed_at,
        "when": describe_when(job),
        "tries": f"{job.attempts}/{job.max_attempts}",
    }


def describe_when(job: ListedJob) -> object:
    """Return how long a job has been in its state, or when it leaves it."""
    match job.state:
        case JobState.READY | JobState.WAITING:
            return {"for": job.run_at}
        case JobState.RUNNING | JobState.STALE:
            return {"for": job.locked_at}
        case JobState.FAILED:
            return {"about": job.failed_at}
    return {"ago": job.run_at}


def show_ended_job(job: EndedJob, redactor: Redactor) -> dict[str, Any]:
    """Return an ended job. Outcomes do not have the named queue and the limit of attempts."""
    return {
        "id": job.job_id,
        "task": job.task_identifier,
        "queue": None,
        "state": job.state,
        "attempt": job.attempts,
        "max_attempts": None,
        "created_at": job.created_at,
        "run_at": job.run_at,
        "started_at": job.started_at,
        "finished_at": job.finished_at,
        "worker": job.worker,
        "error": show_error(job.error, redactor),
        "has_result": job.has_result,
        "run_seconds": (job.finished_at - job.started_at).total_seconds(),
        "wait_seconds": (job.started_at - job.run_at).total_seconds(),
    }


def show_finding(finding: Finding, redactor: Redactor) -> dict[str, Any]:
    """Return a finding. Its evidence may contain errors of jobs."""
    name = None if finding.subject is None else finding.subject.name
    return {
        "id": str(finding.id),
        "severity": finding.severity,
        "title": capitalize(finding.title, name=name),
        "evidence": [capitalize(redactor.redact_text(line)) for line in finding.evidence],
        "advice": write_sentence(finding.advice),
        "shell": finding.shell,
        "sql": finding.sql,
        "affected": finding.affected,
        "subject": finding.subject,
    }


def show_error(error: str | None, redactor: Redactor) -> str | None:
    """Return an error with masked values, cut off if it is very long."""
    if error is None:
        return None
    if len(error) > MAX_ERROR_CHARS:
        error = f"{error[:MAX_ERROR_CHARS]}\n… cut off, {len(error):,} characters in all"
    return redactor.redact_text(error)
