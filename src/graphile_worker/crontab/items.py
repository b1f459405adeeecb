"""CronItem: a scheduled task in code. ParsedCronItem: the same, checked."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Literal
from zoneinfo import ZoneInfo, available_timezones

from graphile_worker._payloads import encode
from graphile_worker._support.lazy_dataclass import LazyKeywordDataclass
from graphile_worker._support.text import suggest
from graphile_worker.crontab.options import MAX_IDENTIFIER_BYTES
from graphile_worker.crontab.patterns import FIELDS, CronPattern, read_pattern
from graphile_worker.crontab.problems import Problems
from graphile_worker.crontab.zones import Matcher, is_due, iter_due_minutes, iter_upcoming_minutes
from graphile_worker.errors import ConfigurationError, CrontabError, JobSpecError
from graphile_worker.jobs import JobSpec, check_text

CronKeyMode = Literal["replace", "preserve_run_at"]

NO_BACKFILL = timedelta(0)


class CronItem(LazyKeywordDataclass):
    """A scheduled task.

    Args:
        task: The identifier of the task.
        match: When it runs: a pattern, or a function of a `TimestampDigest`.
        pattern: Another name of `match`.
        payload: The payload of each job, to which the key `_cron` is added.
        identifier: The name of the item, unique among all items (default: the task).
        backfill: How far back to add the jobs of minutes without a worker.
        max_attempts: The number of attempts of each job.
        queue_name: The named queue of each job.
        priority: The priority of each job.
        job_key: The key of each job.
        job_key_mode: What a key does to an existing job.
        tz: The time zone of the pattern.
    """

    task: str
    match: str | Matcher | None = None
    pattern: str | Matcher | None = None
    payload: Mapping[str, Any] | None = None
    identifier: str | None = None
    backfill: timedelta = NO_BACKFILL
    max_attempts: int | None = None
    queue_name: str | None = None
    priority: int | None = None
    job_key: str | None = None
    job_key_mode: CronKeyMode | None = None
    tz: str = "UTC"


class ParsedCronItem(LazyKeywordDataclass):
    """A checked item, as `parse_crontab` and `parse_cron_items` return it.

    Attributes:
        identifier: Name of the item, unique among all items.
        match: Function that decides whether the item is due in a minute.
        spec: The job to add, without the minute.
        backfill: How far back to add the jobs of minutes without a worker.
        zone: Time zone of the pattern, or None for UTC.
    """

    identifier: str
    match: Matcher
    spec: JobSpec
    backfill: timedelta = NO_BACKFILL
    zone: ZoneInfo | None = None

    @property
    def task(self) -> str:
        """Return the identifier of the task."""
        return self.spec.identifier

    @property
    def payload(self) -> dict[str, Any]:
        """Return the payload, without the key `_cron`."""
        return self.spec.payload or {}

    def is_due(self, minute: datetime) -> bool:
        """Check whether the item is due.

        Args:
            minute: The start of a minute in UTC.

        Returns:
            True if the item adds a job for this minute.
        """
        return is_due(self.match, self.zone, minute)

    def spec_at(self, minute: datetime, *, backfilled: bool = False) -> JobSpec:
        """Build the job of a minute.

        Args:
            minute: The start of the minute in UTC, which `_cron` in the payload contains.
            backfilled: Whether the minute is in the past.

        Returns:
            The job to add.
        """
        mark = {"ts": f"{minute:%Y-%m-%dT%H:%M}:00.000Z", "backfilled": backfilled}
        return replace(self.spec, payload={**self.payload, "_cron": mark}, run_at=minute)

    def upcoming(self, after: datetime) -> Iterator[datetime]:
        """List the minutes at which the item is due.

        Args:
            after: The time after which to start.

        Returns:
            An iterator of minutes in UTC.
        """
        return iter_upcoming_minutes(self.match, self.zone, after)

    def due_between(self, first: datetime, end: datetime) -> Iterator[datetime]:
        """List the minutes of a period at which the item is due.

        Args:
            first: The first minute.
            end: The end, which is excluded.

        Returns:
            An iterator of minutes in UTC.
        """
        return iter_due_minutes(self.match, self.zone, first, end)


def parse_cron_items(items: Iterable[CronItem]) -> list[ParsedCronItem]:
    """Check items that are defined in code.

    Args:
        items: The items.

    Returns:
        The checked items, in the same order.

    Raises:
        ConfigurationError: An item is invalid, or two have the same identifier.
    """
    parsed = [_parse_item(index, item) for index, item in enumerate(items)]
    check_identifiers(parsed)
    return parsed


def check_identifiers(items: Sequence[ParsedCronItem]) -> None:
    """Reject two items with one identifier: only one of them would run at a common minute."""
    if repeated := find_repeated_identifiers(items):
        names = ", ".join(repr(each) for each in repeated)
        raise ConfigurationError(
            f"several cron items are called {names}: set a different identifier for each"
        )


def find_repeated_identifiers(items: Iterable[ParsedCronItem]) -> list[str]:
    counts = Counter(item.identifier for item in items)
    return [identifier for identifier, count in counts.items() if count > 1]


def build_cron_spec(task: str, payload: Any, **options: Any) -> JobSpec:
    """Build and check the job of an item. The default mode of a key is replace."""
    encode(payload)
    if options.get("job_key") is not None and options.get("job_key_mode") is None:
        options["job_key_mode"] = "replace"
    return JobSpec(task, payload, **options)


def _parse_item(index: int, item: CronItem) -> ParsedCronItem:
    if not isinstance(item, CronItem):
        raise ConfigurationError(f"cron item {index}: expected a CronItem, got {item!r}")
    try:
        identifier = check_text("identifier", item.identifier or item.task)
        if len(identifier.encode()) > MAX_IDENTIFIER_BYTES:
            raise ConfigurationError(f"identifier must have at most {MAX_IDENTIFIER_BYTES} bytes")
        return ParsedCronItem(
            identifier=identifier,
            match=_resolve_match(item),
            spec=_build_spec(item),
            backfill=_check_backfill(item.backfill),
            zone=_load_zone(item.tz),
        )
    except (ConfigurationError, CrontabError, JobSpecError) as error:
        raise ConfigurationError(f"cron item {index} ({item.task}): {error}") from error


def _resolve_match(item: CronItem) -> Matcher:
    matches = [each for each in (item.match, item.pattern) if each is not None]
    if len(matches) != 1:
        raise ConfigurationError("pass either match or pattern, which mean the same")
    (match,) = matches
    if callable(match):
        return match
    if isinstance(match, str):
        return parse_pattern(match)
    raise ConfigurationError(f"match must be a pattern or a function, got {match!r}")


def parse_pattern(text: str) -> CronPattern:
    """Parse five fields, separated by spaces."""
    problems = Problems()
    fields = [(match.start() + 1, match[0]) for match in re.finditer(r"\S+", text)]
    if len(fields) != len(FIELDS):
        problems.record(1, text, "five fields: minute, hour, day, month, day of the week")
        raise CrontabError(problems, source="pattern")
    pattern = read_pattern(fields, problems)
    if problems:
        raise CrontabError(problems, source="pattern")
    problems.log_warnings(f"pattern {text!r}")
    return pattern


def _build_spec(item: CronItem) -> JobSpec:
    if not isinstance(item.payload, Mapping | None):
        raise ConfigurationError(f"payload must be a mapping, got {type(item.payload).__name__}")
    if item.job_key_mode not in (None, "replace", "preserve_run_at"):
        raise ConfigurationError(
            f"job_key_mode must be 'replace' or 'preserve_run_at', got {item.job_key_mode!r}"
        )
    return build_cron_spec(
        item.task,
        None if item.payload is None else dict(item.payload),
        job_key=item.job_key,
        job_key_mode=item.job_key_mode,
        queue_name=item.queue_name,
        max_attempts=item.max_attempts,
        priority=item.priority,
    )


def _check_backfill(period: object) -> timedelta:
    if not isinstance(period, timedelta) or period < NO_BACKFILL:
        raise ConfigurationError(f"backfill must be a timedelta of at least 0, got {period!r}")
    return period


def _load_zone(name: object) -> ZoneInfo | None:
    if name == "UTC":
        return None
    try:
        return ZoneInfo(name)  # type: ignore[arg-type]  # the check is what this line is for
    except (KeyError, ValueError, TypeError, OSError) as error:
        hint = suggest(str(name), available_timezones())
        raise ConfigurationError(
            f"unknown time zone {name!r}{hint} If the name is right, install the package tzdata."
        ) from error
