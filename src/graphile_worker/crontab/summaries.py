"""Summaries of cron items, which a worker registers so that other programs can list them."""

import json
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Self
from zoneinfo import ZoneInfo

from graphile_worker._support.lazy_dataclass import LazyKeywordDataclass
from graphile_worker.crontab.items import ParsedCronItem, parse_pattern
from graphile_worker.crontab.patterns import CronPattern, format_pattern
from graphile_worker.errors import CrontabError

# Upper bound on the size of all summaries of a worker. Every tool that lists workers reads them.
MAX_SUMMARY_BYTES = 4_000


class CronSummary(LazyKeywordDataclass):
    """A cron item without its job: what people need to know of it.

    Attributes:
        identifier: Name of the item.
        task: Identifier of the task.
        schedule: Five fields, or None for a function in place of a pattern.
        backfill: How far back to add the jobs of minutes without a worker.
        tz: Name of the time zone.
    """

    identifier: str
    task: str
    schedule: str | None
    backfill: timedelta = timedelta(0)
    tz: str = "UTC"

    @classmethod
    def from_item(cls, item: ParsedCronItem) -> Self:
        """Summarize an item.

        Args:
            item: The item.
        """
        is_pattern = isinstance(item.match, CronPattern)
        return cls(
            identifier=item.identifier,
            task=item.task,
            schedule=format_pattern(item.match) if isinstance(item.match, CronPattern) else None,
            backfill=item.backfill,
            tz="UTC" if item.zone is None or not is_pattern else item.zone.key,
        )

    @classmethod
    def from_json(cls, value: Any) -> Self | None:
        """Read a summary of any worker, or return None if it is not one.

        Args:
            value: The decoded JSON.
        """
        if not isinstance(value, dict):
            return None
        texts = [value.get(name) for name in ("id", "task")]
        schedule, tz = value.get("schedule"), value.get("tz", "UTC")
        seconds = value.get("backfill", 0)
        if not all(isinstance(each, str) and each for each in (*texts, tz)):
            return None
        if not isinstance(schedule, str | None) or not isinstance(seconds, int | float):
            return None
        try:
            backfill = timedelta(seconds=seconds)
        except (OverflowError, ValueError):
            return None
        return cls(
            identifier=str(texts[0]),
            task=str(texts[1]),
            schedule=schedule,
            backfill=max(timedelta(0), backfill),
            tz=tz,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the summary as JSON values, without those that have their default."""
        values: dict[str, Any] = {"id": self.identifier, "task": self.task}
        if self.schedule is not None:
            values["schedule"] = self.schedule
        if self.backfill:
            values["backfill"] = self.backfill.total_seconds()
        if self.tz != "UTC":
            values["tz"] = self.tz
        return values

    @property
    def pattern(self) -> CronPattern | None:
        """Return the pattern, or None if there is none that this version can read."""
        try:
            return None if self.schedule is None else parse_pattern(self.schedule)
        except CrontabError:
            return None

    @property
    def zone(self) -> ZoneInfo | None:
        """Return the time zone, or None for UTC.

        Raises:
            KeyError, ValueError, OSError: This machine does not know the time zone.
        """
        return None if self.tz == "UTC" else ZoneInfo(self.tz)


def summarize_items(items: Iterable[ParsedCronItem]) -> list[dict[str, Any]]:
    """Summarize items as JSON values. Those that would exceed the size are left out.

    Args:
        items: The items of a worker.
    """
    summaries, size = [], 0
    for item in items:
        summary = CronSummary.from_item(item).to_json()
        size += len(json.dumps(summary))
        if size > MAX_SUMMARY_BYTES:
            break
        summaries.append(summary)
    return summaries
