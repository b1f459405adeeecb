"""Monitors of scheduled tasks in Sentry: the cron item of a job, its slug and its schedule."""

import hashlib
import json
import re
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from graphile_worker._payloads import encode
from graphile_worker.crontab import ParsedCronItem
from graphile_worker.crontab.patterns import CronPattern, format_pattern
from graphile_worker.jobs import Job
from graphile_worker.tasks import read_cron_run
from graphile_worker.tasks.batch import TRACE_KEY

MAX_SLUG_LENGTH = 50
SLUG_HASH_LENGTH = 8
SLUG_PATTERN = re.compile(r"(?=.*[^0-9])[a-z0-9_-]{1,50}")
CHECK_IN_NAMESPACE = uuid.UUID("6e1f6bf3-6d3c-5a0b-9a55-0f4a5d1c7a10")


@dataclass(frozen=True, slots=True)
class CheckIn:
    """The check-in of one job of a scheduled task. All its attempts have the same id."""

    id: str
    slug: str
    monitor_config: dict[str, Any] | None


class Monitors:
    """Finds the cron item of a job.

    A job contains only its minute. Its item is the one of its task that is due in that minute. If
    several are, their payloads and job keys differ, or the job has no check-in.
    """

    def __init__(self, list_items: Callable[[], list[ParsedCronItem]]) -> None:
        # Called for each job, because an app may define more tasks.
        self._list_items = list_items

    def build_check_in(self, job: Job) -> CheckIn | None:
        """Return the check-in of a job, or None if it has no monitor."""
        # Neither the payload nor the function of an item is trusted.
        with suppress(Exception):
            cron_run = read_cron_run(job)
            # Sentry recorded a minute that is backfilled as missed.
            if cron_run is None or cron_run.backfilled or cron_run.scheduled_at.tzinfo is None:
                return None
            minute = cron_run.scheduled_at.astimezone(UTC).replace(second=0, microsecond=0)
            item = self._find_item(job, minute)
            return None if item is None else _build_check_in(item, job, minute)
        return None

    def _find_item(self, job: Job, minute: datetime) -> ParsedCronItem | None:
        items = [
            item
            for item in self._list_items()
            if item.task == job.task_identifier and item.is_due(minute)
        ]
        if len(items) > 1:
            items = [item for item in items if _has_payload(item, job)]
        if len(items) > 1:
            items = [item for item in items if item.spec.job_key == job.key]
        return items[0] if len(items) == 1 else None


def _has_payload(item: ParsedCronItem, job: Job) -> bool:
    # Compared as JSON, and not as the task may have changed it.
    payload = json.loads(job.payload_text)
    payload.pop("_cron", None)
    payload.pop(TRACE_KEY, None)
    return bool(payload == json.loads(encode(item.payload) or "{}"))


def _build_check_in(item: ParsedCronItem, job: Job, minute: datetime) -> CheckIn:
    slug = _build_slug(item.identifier)
    # Attempts may run in different processes. Ids of jobs repeat in other databases.
    name = f"{slug} {minute.isoformat()} {job.id} {job.created_at.isoformat()}"
    return CheckIn(
        id=uuid.uuid5(CHECK_IN_NAMESPACE, name).hex,
        slug=slug,
        monitor_config=_build_monitor_config(item),
    )


def _build_slug(identifier: str) -> str:
    """Return the identifier if it is a slug of Sentry, else a similar one with a hash."""
    if SLUG_PATTERN.fullmatch(identifier):
        return identifier
    digest = hashlib.sha256(identifier.encode()).hexdigest()[:SLUG_HASH_LENGTH]
    similar = re.sub(r"[^a-z0-9_]+", "-", identifier.lower()).strip("-")
    prefix = similar[: MAX_SLUG_LENGTH - SLUG_HASH_LENGTH - 1].rstrip("-")
    return f"{prefix}-{digest}" if prefix else f"cron-{digest}"


def _build_monitor_config(item: ParsedCronItem) -> dict[str, Any] | None:
    """Return the schedule, or None for a function in place of a pattern."""
    if not isinstance(item.match, CronPattern):
        return None
    return {
        "schedule": {"type": "crontab", "value": format_pattern(item.match)},
        "timezone": "UTC" if item.zone is None else item.zone.key,
    }
