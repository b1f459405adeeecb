"""Queries about the progress that running tasks report."""

import json
import time
from collections.abc import Mapping, Sequence

from graphile_worker._sql.query import Query
from graphile_worker._support.lazy_dataclass import LazyDataclass


class ProgressReport(LazyDataclass):
    """The last report of a run of a job. The time is that of `time.monotonic`."""

    job_id: int
    pool_id: str
    fraction: float | None
    message: str | None
    reported_at: float


def write_progress(reports: Sequence[ProgressReport], ended: Mapping[int, str]) -> Query[None]:
    """Write reports, and delete the rows of ended jobs, which their pools held."""
    now = time.monotonic()
    # No escapes: a database that is not UTF-8 can read few of them, if any.
    text = json.dumps([_encode_report(each, now) for each in reports], ensure_ascii=False)
    return Query("write_progress", (text, list(ended), list(ended.values())))


def delete_orphaned_progress() -> Query[None]:
    return Query("delete_orphaned_progress")


def _encode_report(report: ProgressReport, now: float) -> dict[str, object]:
    return {
        "id": report.job_id,
        "pool": report.pool_id,
        "fraction": report.fraction,
        "message": report.message,
        "age": round((now - report.reported_at) * 1e6),
    }
