"""List scheduled tasks: those of an app, those that workers register, those known to the database.

The database knows only the names of cron items and when each ran last. Python workers also register
their schedules, and an app has the items themselves.
"""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.add import plan_add_jobs
from graphile_worker._sql.plans.audit import AuditLabel, plan_audited
from graphile_worker._sql.queries.audit import AuditAction
from graphile_worker._sql.queries.cron import KnownCrontab, get_known_crontabs, get_server_time
from graphile_worker._sql.queries.workers import CRONTAB_KEY, check_registries, get_pools
from graphile_worker._sql.query import Plan, Row
from graphile_worker.crontab.items import ParsedCronItem
from graphile_worker.crontab.patterns import CronPattern
from graphile_worker.crontab.summaries import CronSummary
from graphile_worker.crontab.words import describe_pattern
from graphile_worker.crontab.zones import iter_due_minutes
from graphile_worker.jobs import Job, JobSpec
from graphile_worker.ops.search import DEFAULT_LIMITS, QueryLimits, with_limits

NEXT_RUNS = 3

# A run that is later than this is late. Workers add the jobs of a minute within seconds of it.
LATE_AFTER = timedelta(minutes=3)

# How far ahead to call a function in place of a pattern, once for each minute.
FUNCTION_HORIZON = timedelta(days=8)

MINUTE = timedelta(minutes=1)


class CronSource(StrEnum):
    """Where the schedule of an item comes from."""

    APP = "app"
    """The app of this program."""
    WORKER = "worker"
    """A Python worker that is running."""
    DATABASE = "database"
    """Only the name is known: a worker in another language, or one that has stopped."""


class CronHealth(StrEnum):
    """Whether an item runs when it is due."""

    OK = "ok"
    """It ran when it was due last, or was not due since it is known."""
    LATE = "late"
    """It was due more than three minutes ago, and did not run since."""
    UNKNOWN = "unknown"
    """Its schedule is not known, or no worker has registered it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedCronItem:
    """A scheduled task in a list.

    Attributes:
        identifier: Name of the item.
        task: Identifier of the task, None if only the name of the item is known.
        schedule: Five fields, or None for a function and for an unknown schedule.
        words: The schedule in words, or None if the pattern is clearer.
        tz: Name of the time zone.
        next: The next runs.
        last_at: The last minute for which a job was added.
        known_since: When a worker registered the item, None if no worker did.
        backfill: How far back workers add the jobs of minutes without a worker.
        source: Where the schedule comes from.
        health: Whether it runs when it is due.
    """

    identifier: str
    task: str | None
    schedule: str | None
    words: str | None
    tz: str | None
    next: tuple[datetime, ...]
    last_at: datetime | None
    known_since: datetime | None
    backfill: timedelta | None
    source: CronSource
    health: CronHealth


@dataclass(frozen=True, slots=True)
class CronListing:
    """All scheduled tasks by name, and the time of the database."""

    items: list[ListedCronItem]
    now: datetime


def plan_list_cron_items(
    schemas: Schemas,
    items: Iterable[ParsedCronItem] = (),
    *,
    limits: QueryLimits = DEFAULT_LIMITS,
) -> Plan[CronListing]:
    """List scheduled tasks.

    Args:
        schemas: The schemas of the queue.
        items: The items of an app. They take precedence over what workers register.
        limits: The timeouts of each statement.

    Returns:
        A plan for the list.

    Raises:
        QueryTimeoutError: A statement took too long or waited too long for a lock.
    """
    now = yield from with_limits(get_server_time(), schemas, limits)
    known = yield from with_limits(get_known_crontabs(), schemas, limits)
    has_python, _ = yield from with_limits(check_registries(schemas), schemas, limits)
    rows: Sequence[Row] = ()
    if has_python:
        rows = yield from with_limits(get_pools(), schemas, limits)
    listed = {name: _list_known(each) for name, each in known.items()}
    for summary in _read_summaries(rows):
        listed[summary.identifier] = _list_summary(summary, known, now)
    for item in items:
        listed[item.identifier] = _list_item(item, known, now)
    return CronListing([listed[name] for name in sorted(listed)], now)


def plan_run_cron_item(
    item: ParsedCronItem, now: datetime, schemas: Schemas, *, actor: str | None = None
) -> Plan[Job]:
    """Add the job of an item now, and record it in the audit. The schedule stays the same.

    Args:
        item: The item.
        now: The time, which the payload contains.
        schemas: The schemas of the queue.
        actor: Who runs it, for the audit.

    Returns:
        A plan for the job.
    """
    spec = replace(item.spec_at(now), run_at=None)
    label = AuditLabel(action=AuditAction.CRON_RUN, actor=actor, filter=item.identifier)

    def plan_add() -> Plan[list[Job]]:
        return plan_add_jobs([spec], schemas, max_bytes=None, all_or_nothing=False)

    jobs = yield from plan_audited(plan_add, lambda jobs: [job.id for job in jobs], schemas, label)
    return jobs[0]


def _read_summaries(rows: Iterable[Row]) -> Iterator[CronSummary]:
    """Read the cron items that workers registered. Those of the newest worker come last."""
    for _, _, age, lease, is_rescued, text in sorted(rows, key=lambda row: float(row[1])):
        if is_rescued or age > lease:
            continue
        try:
            details = json.loads(text)
            crontab = details.get(CRONTAB_KEY, ())
        except (ValueError, RecursionError, AttributeError):
            # Other programs write this table too.
            continue
        if isinstance(crontab, list):
            yield from filter(None, map(CronSummary.from_json, crontab))


def _list_known(known: KnownCrontab) -> ListedCronItem:
    return ListedCronItem(
        identifier=known.identifier,
        task=None,
        schedule=None,
        words=None,
        tz=None,
        next=(),
        last_at=known.last_execution,
        known_since=known.known_since,
        backfill=None,
        source=CronSource.DATABASE,
        health=CronHealth.UNKNOWN,
    )


def _list_summary(
    summary: CronSummary, known: Mapping[str, KnownCrontab], now: datetime
) -> ListedCronItem:
    listed = _build_item(summary, known, CronSource.WORKER)
    pattern = summary.pattern
    if pattern is None:
        return listed
    try:
        zone = summary.zone
    except (KeyError, ValueError, OSError):
        # This machine does not know the time zone.
        return listed
    spec = JobSpec("unknown")
    item = ParsedCronItem(identifier=summary.identifier, match=pattern, spec=spec, zone=zone)
    return _add_times(listed, item, known, now)


def _list_item(
    item: ParsedCronItem, known: Mapping[str, KnownCrontab], now: datetime
) -> ListedCronItem:
    listed = _build_item(CronSummary.from_item(item), known, CronSource.APP)
    try:
        return _add_times(listed, item, known, now)
    except Exception:
        # The item is a function of the user, which may raise anything.
        return listed


def _build_item(
    summary: CronSummary, known: Mapping[str, KnownCrontab], source: CronSource
) -> ListedCronItem:
    found = known.get(summary.identifier)
    pattern = summary.pattern
    zone = None if summary.tz == "UTC" else summary.tz
    return ListedCronItem(
        identifier=summary.identifier,
        task=summary.task,
        schedule=summary.schedule,
        words=None if pattern is None else describe_pattern(pattern, zone),
        tz=summary.tz,
        next=(),
        last_at=None if found is None else found.last_execution,
        known_since=None if found is None else found.known_since,
        backfill=summary.backfill,
        source=source,
        health=CronHealth.UNKNOWN,
    )


def _add_times(
    listed: ListedCronItem,
    item: ParsedCronItem,
    known: Mapping[str, KnownCrontab],
    now: datetime,
) -> ListedCronItem:
    """Add the next runs of an item, and whether it is late."""
    minute = now.replace(second=0, microsecond=0) + MINUTE
    end = None if isinstance(item.match, CronPattern) else now + FUNCTION_HORIZON
    upcoming = iter_due_minutes(item.match, item.zone, minute, end)
    runs = tuple(itertools.islice(upcoming, NEXT_RUNS))
    return replace(listed, next=runs, health=_assess(item, known.get(item.identifier), now))


def _assess(item: ParsedCronItem, known: KnownCrontab | None, now: datetime) -> CronHealth:
    if known is None:
        return CronHealth.UNKNOWN
    since = known.last_execution or known.known_since
    first = since.replace(second=0, microsecond=0) + MINUTE
    if not isinstance(item.match, CronPattern):
        first = max(first, (now - FUNCTION_HORIZON).replace(second=0, microsecond=0))
    missed = next(item.due_between(first, now - LATE_AFTER), None)
    return CronHealth.OK if missed is None else CronHealth.LATE
