"""Job, JobSpec and JobOptions: a job in the database, a job to add, and its options."""

import json
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Generic, Literal, Protocol, TypedDict

from graphile_worker.errors import JobSpecError

if sys.version_info >= (3, 13):
    from typing import TypeVar
else:
    from typing_extensions import TypeVar

R_co = TypeVar("R_co", default=Any, covariant=True)

SMALLINT_RANGE = range(-32768, 32768)
MAX_QUEUE_NAME_LENGTH = 128
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MIN_DATETIME = datetime.min.replace(tzinfo=UTC)
MAX_DATETIME = datetime.max.replace(tzinfo=UTC)

# PostgreSQL's calendar runs from 4713 BC to the year 294276.
MIN_OFFSET = timedelta(days=-2_400_000)
MAX_OFFSET = timedelta(days=100_000_000)
# PostgreSQL 14 reads the hours of an interval as a 32-bit integer.
MAX_WINDOW = timedelta(days=(2**31 - 1) // 24)


class JobKeyMode(StrEnum):
    """Choose what `add_job` does when a job already has the `job_key`."""

    REPLACE = "replace"
    """Overwrite the existing job. With a later `run_at` this debounces."""
    PRESERVE_RUN_AT = "preserve_run_at"
    """Overwrite the existing job but keep its `run_at`. This throttles."""
    UNSAFE_DEDUPE = "unsafe_dedupe"
    """Keep the existing job, even if it is running or has permanently failed. Dangerous: the job
    that you add may never run."""


JobKeyModeName = Literal["replace", "preserve_run_at", "unsafe_dedupe"]
RunAt = datetime | timedelta


class JobOptions(TypedDict, total=False):
    """Options of one job, passed as keyword arguments to every function that adds jobs.

    An option that is missing or None gets the task's default, then the database's.
    """

    queue_name: str | None
    """Named queue. Its jobs run one at a time (default: no queue)."""
    run_at: RunAt | None
    """Earliest start: an aware datetime, or a timedelta from the database's now (default: now)."""
    max_attempts: int | None
    """Number of attempts before the job permanently fails (default: 25)."""
    priority: int | None
    """Jobs with a lower number run first (default: 0)."""
    job_key: str | None
    """Unique key, by which a later call replaces or removes the job (default: no key)."""
    job_key_mode: JobKeyMode | JobKeyModeName | None
    """What to do when a job already has the key (default: "replace")."""
    flags: Collection[str] | None
    """Labels, by which a worker can leave jobs out with `forbidden_flags` (default: none)."""
    shard_key: str | None
    """Text that decides the shard, if there are several (default: the job key, the unique key or
    the queue)."""
    unique: str | None
    """Unique key of a window: while it is open, no other job is added with it (default: none)."""
    unique_for: timedelta | None
    """Length of the window, which stays open when the job ends. Required with `unique`."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """Describe a job to add. See `JobOptions` for the fields after `payload`.

    Args:
        identifier: Name of the task.
        payload: Any value that JSON can represent (default: an empty object).

    Raises:
        JobSpecError: A value cannot be stored.
    """

    identifier: str
    payload: Any = None
    queue_name: str | None = None
    run_at: RunAt | None = None
    max_attempts: int | None = None
    priority: int | None = None
    job_key: str | None = None
    job_key_mode: JobKeyMode | JobKeyModeName | None = None
    flags: Collection[str] | None = None
    shard_key: str | None = None
    unique: str | None = None
    unique_for: timedelta | None = None

    def __post_init__(self) -> None:
        check_name("identifier", self.identifier, 128, "GWBID")
        if self.identifier == "":
            raise JobSpecError("identifier", "", "must not be empty", "GWBID")
        if self.queue_name is not None:
            check_name("queue_name", self.queue_name, MAX_QUEUE_NAME_LENGTH, "GWBQN")
        if self.job_key is not None:
            _check_key(self.job_key)
        if self.job_key_mode is not None:
            check_job_key_mode(self.job_key_mode)
        if self.run_at is not None:
            check_run_at("run_at", self.run_at)
        if self.max_attempts is not None:
            check_max_attempts(self.max_attempts)
        if self.priority is not None:
            check_smallint("priority", self.priority)
        if self.flags is not None:
            _check_flags(self.flags)
        if self.shard_key is not None:
            check_text("shard_key", self.shard_key)
        if self.unique is not None or self.unique_for is not None:
            _check_window(self.unique, self.unique_for, self.job_key)


JOB_OPTION_NAMES = tuple(JobOptions.__annotations__)


def build_spec(identifier: str, payload: Any, options: Mapping[str, Any]) -> JobSpec:
    """Build a spec from keyword arguments.

    Raises:
        TypeError: An option does not exist.
        JobSpecError: A value cannot be stored.
    """
    for name in options:
        if name not in JOB_OPTION_NAMES:
            raise _build_unknown_option_error(name)
    return JobSpec(identifier, payload, **options)


def _build_unknown_option_error(name: str) -> TypeError:
    # Imported for a mistake only, as every command waits for the imports.
    from difflib import get_close_matches

    if close := get_close_matches(name, JOB_OPTION_NAMES, n=1, cutoff=0.5):
        return TypeError(f"unknown job option {name!r}, did you mean {close[0]!r}?")
    return TypeError(f"unknown job option {name!r}. Job options: {', '.join(JOB_OPTION_NAMES)}")


_NOT_DECODED: Any = object()


class ResultSource(Protocol):
    """An object that waits for the result of a job, for example of the app that added it."""

    def result(self, job: "Job[Any]", timeout: timedelta | None) -> Any: ...

    async def aresult(self, job: "Job[Any]", timeout: timedelta | None) -> Any: ...  # noqa: ASYNC109


class Job(Generic[R_co]):
    """A job, as its row was when it was read.

    The payload and the timestamps are decoded on first access. `Job[int]` is a job whose task
    returns an int.

    Attributes:
        id: Number of the job.
        task_identifier: Name of the task.
        queue_name: Named queue, or None.
        payload_text: Payload as JSON text.
        priority: Priority. Jobs with a lower number run first.
        attempts: Number of attempts that started.
        max_attempts: Number of attempts before the job permanently fails.
        last_error: Error of the last failed attempt, or None.
        key: Job key, or None.
        locked_by: Id of the worker pool that holds the job, or None.
        revision: How often a call with the job's key changed it.
    """

    # A worker creates one per job: plain slots are 2 µs faster than a frozen dataclass.

    __slots__ = (
        "_created_at",
        "_flags",
        "_is_duplicate",
        "_locked_at",
        "_payload",
        "_result_source",
        "_run_at",
        "_shard",
        "_updated_at",
        "attempts",
        "id",
        "key",
        "last_error",
        "locked_by",
        "max_attempts",
        "payload_text",
        "priority",
        "queue_name",
        "revision",
        "task_identifier",
    )

    # Not set unless `enqueue` or `aenqueue` of a task returned the job.
    _result_source: ResultSource

    # Not set without shards.
    _shard: str

    # Not set unless the window of a unique key was open.
    _is_duplicate: bool

    def __init__(
        self,
        id: int,
        task_identifier: str,
        queue_name: str | None,
        payload_text: str,
        priority: int,
        run_at: str | None,
        attempts: int,
        max_attempts: int,
        last_error: str | None,
        created_at: str,
        updated_at: str | None,
        key: str | None,
        locked_at: str | None,
        locked_by: str | None,
        revision: int,
        flags: str | None,
    ) -> None:
        self.id = id
        self.task_identifier = task_identifier
        self.queue_name = queue_name
        self.payload_text = payload_text
        self.priority = priority
        self._run_at = run_at or created_at
        self.attempts = attempts
        self.max_attempts = max_attempts
        self.last_error = last_error
        self._created_at = created_at
        self._updated_at = updated_at or created_at
        self.key = key
        self._locked_at = locked_at
        self.locked_by = locked_by
        self.revision = revision
        self._flags = flags
        self._payload: Any = _NOT_DECODED

    @property
    def shard(self) -> str | None:
        """Return the name of the job's shard, or None without shards."""
        return getattr(self, "_shard", None)

    @property
    def is_duplicate(self) -> bool:
        """Return whether nothing was added, because the window of `unique` was open.

        The job is then the earlier one, as its row is now. If that row is deleted, only its id and
        `created_at` are known, and the other fields are those of the job that was not added.
        """
        return getattr(self, "_is_duplicate", False)

    @property
    def payload(self) -> Any:
        """Decode the payload, once.

        Raises:
            ValueError: Python cannot decode the JSON, for example because of its nesting depth.
        """
        if self._payload is _NOT_DECODED:
            self._payload = _decode_json(self.payload_text)
        return self._payload

    @property
    def run_at(self) -> datetime:
        """Return the time from which the job may run."""
        return parse_timestamp(self._run_at)

    @property
    def created_at(self) -> datetime:
        """Return the time at which the job was added."""
        return parse_timestamp(self._created_at)

    @property
    def updated_at(self) -> datetime:
        """Return the time of the last change."""
        return parse_timestamp(self._updated_at)

    @property
    def locked_at(self) -> datetime | None:
        """Return the time at which a worker claimed the job, or None."""
        return None if self._locked_at is None else parse_timestamp(self._locked_at)

    @property
    def flags(self) -> frozenset[str]:
        """Return the flags of the job."""
        return parse_flags(self._flags)

    def result(self, timeout: timedelta | None = None) -> R_co:
        """Wait until the job ends, and return what its task returned.

        Only jobs that `enqueue` or `aenqueue` of a task returned have this method. For other jobs,
        for example from `get_job`, pass the id to `App.result` or `Client.result`.

        Args:
            timeout: Longest wait (default: no limit).

        Returns:
            The result of the task.

        Raises:
            JobFailedError: The job permanently failed.
            ResultUnknownError: The job is deleted and left no result, or its task keeps none.
            ResultError: The stored result does not have the task's return type.
            OpenTransactionError: The transaction that adds the job is still open.
            TimeoutError: The job did not end in time.
            TypeError: The job was not returned by `enqueue` or `aenqueue`.
        """
        value: R_co = self._get_result_source().result(self, timeout)
        return value

    async def aresult(self, timeout: timedelta | None = None) -> R_co:  # noqa: ASYNC109
        """Wait for the result in async code. See `result`."""
        value: R_co = await self._get_result_source().aresult(self, timeout)
        return value

    def _get_result_source(self) -> ResultSource:
        source: ResultSource | None = getattr(self, "_result_source", None)
        if source is None:
            raise TypeError(
                f"job {self.id} has no result here, because `enqueue` of a task did not return it. "
                f"Call result({self.id}) of an app or a client."
            )
        return source

    def __reduce__(self) -> tuple[Any, ...]:
        # The row alone: a copy in another process decodes it, and has no app to wait with.
        return Job, tuple(getattr(self, name) for name in _CONSTRUCTOR_SLOTS)

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.task_identifier} {self.attempts}/{self.max_attempts}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Job):
            return NotImplemented
        return _get_row(self) == _get_row(other)

    def __hash__(self) -> int:
        return hash((self.id, self.revision))


# The slots that the constructor sets, in the order of its arguments.
_CONSTRUCTOR_SLOTS = (
    "id",
    "task_identifier",
    "queue_name",
    "payload_text",
    "priority",
    "_run_at",
    "attempts",
    "max_attempts",
    "last_error",
    "_created_at",
    "_updated_at",
    "key",
    "_locked_at",
    "locked_by",
    "revision",
    "_flags",
)


def parse_timestamp(epoch: str) -> datetime:
    """Convert seconds since 1970 to a datetime, clamped to the range of Python's calendar.

    Args:
        epoch: Seconds as text, which is exact. A float would depend on the session's settings.
    """
    try:
        return EPOCH + timedelta(microseconds=parse_microseconds(epoch))
    except (OverflowError, ValueError):
        return MIN_DATETIME if epoch.startswith("-") else MAX_DATETIME


def parse_flags(text: str | None) -> frozenset[str]:
    """Return the flags of a job, which are the keys of a JSON object."""
    flags = None if text is None else _decode_json(text)
    return frozenset(flags) if isinstance(flags, dict) else frozenset()


def parse_microseconds(epoch: str) -> int:
    """Convert seconds as PostgreSQL prints them, with six decimals, to microseconds."""
    return int(epoch.replace(".", ""))


def check_run_at(argument: str, value: object) -> None:
    """Raise JobSpecError unless the value is an aware datetime or a timedelta."""
    if isinstance(value, timedelta):
        if not MIN_OFFSET < value < MAX_OFFSET:
            raise JobSpecError(argument, value, "outside of what PostgreSQL can store", "22008")
        return
    if not isinstance(value, datetime):
        hint = "expected an aware datetime or a timedelta"
        if isinstance(value, int | float):
            hint += "; a bare number could be seconds or milliseconds"
        raise JobSpecError(argument, value, hint, "22007")
    if value.utcoffset() is None:
        raise JobSpecError(argument, value, "naive datetime: set its tzinfo", "22007")
    try:
        value.astimezone(UTC)
    except OverflowError:
        raise JobSpecError(argument, value, "outside the calendar in UTC", "22008") from None


def check_max_attempts(value: object) -> None:
    """Raise JobSpecError unless the value is a positive smallint."""
    check_smallint("max_attempts", value)
    if isinstance(value, int) and value < 1:
        raise JobSpecError("max_attempts", value, "must be at least 1", "GWBMA")


def check_smallint(argument: str, value: object) -> None:
    """Raise JobSpecError unless the value fits PostgreSQL's smallint."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise JobSpecError(argument, value, "expected an int", "22003")
    if value not in SMALLINT_RANGE:
        raise JobSpecError(argument, value, "must be from -32768 to 32767", "22003")


def check_job_key_mode(value: object) -> None:
    """Raise JobSpecError unless the value is a job key mode."""
    try:
        JobKeyMode(value)  # type: ignore[arg-type]  # the check is what this line is for
    except ValueError:
        modes = ", ".join(JobKeyMode)
        raise JobSpecError("job_key_mode", value, f"expected one of {modes}", "GWBKM") from None


def check_text(argument: str, value: object) -> str:
    """Return the value if PostgreSQL can store it as text, else raise JobSpecError."""
    if not isinstance(value, str):
        code = "23502" if value is None else "22023"
        raise JobSpecError(argument, value, "expected a str", code)
    if "\x00" in value:
        raise JobSpecError(argument, value, "PostgreSQL text cannot hold NUL", "22021")
    if not value.isascii() and not _is_utf8(value):
        raise JobSpecError(argument, value, "lone surrogates are not UTF-8", "22021")
    return value


def check_name(argument: str, value: object, max_length: int, code: str) -> None:
    """Raise JobSpecError if the value is not text of at most `max_length` characters."""
    text = check_text(argument, value)
    if len(text) > max_length:
        raise JobSpecError(argument, value, f"at most {max_length} characters", code)


def _check_key(value: object) -> None:
    check_name("job_key", value, 512, "GWBJK")
    if value == "":
        raise JobSpecError("job_key", value, "must not be empty", "GWBJK")


def _check_window(unique: object, unique_for: object, job_key: str | None) -> None:
    if unique is None:
        reason = "needs unique, the key of the window"
        raise JobSpecError("unique_for", unique_for, reason, "22023")
    check_name("unique", unique, 512, "22023")
    if unique == "":
        raise JobSpecError("unique", unique, "must not be empty", "22023")
    if unique_for is None:
        reason = "needs unique_for, the length of the window"
        raise JobSpecError("unique", unique, reason, "22023")
    if not isinstance(unique_for, timedelta) or unique_for <= timedelta(0):
        raise JobSpecError("unique_for", unique_for, "expected a timedelta above 0", "22023")
    if unique_for > MAX_WINDOW:
        reason = f"expected at most {MAX_WINDOW.days:,} days"
        raise JobSpecError("unique_for", unique_for, reason, "22008")
    if job_key is not None:
        reason = (
            f"not together with job_key={job_key!r}. A job key replaces a waiting job, and unique "
            "keeps the earlier one. Choose one of them."
        )
        raise JobSpecError("unique", unique, reason, "22023")


def _check_flags(flags: object) -> None:
    if isinstance(flags, str) or not isinstance(flags, Collection):
        raise JobSpecError("flags", flags, "expected a list of str", "22023")
    for flag in flags:
        if flag is None:
            raise JobSpecError("flags", flags, "a flag must not be None", "22023")
        check_text("flags", flag)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _get_row(job: Job) -> list[object]:
    return [getattr(job, name) for name in _CONSTRUCTOR_SLOTS]


# The C function under json.loads, which is enough for most payloads and faster.
_scan_json: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


def _decode_json(text: str) -> Any:
    try:
        value, end = _scan_json(text, 0)
        if end == len(text):
            return value
    except (StopIteration, ValueError, RecursionError):
        # json.loads raises a better message.
        pass
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None
