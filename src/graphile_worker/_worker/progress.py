"""ProgressBuffer: keeps the last report of each running job, and writes all with the heartbeat."""

import math
import threading
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from numbers import Real

from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._sql.queries.progress import (
    ProgressReport,
    delete_orphaned_progress,
    write_progress,
)
from graphile_worker._sql.query import Query
from graphile_worker._sql.sqlstate import get_sqlstate
from graphile_worker._support.error_format import escape_non_ascii, format_error_line
from graphile_worker._support.logs import Logger

# The longest message that is stored, in UTF-8.
MAX_MESSAGE_BYTES = 4096

# Seconds until the next write after an error, for example because the table is missing.
RETRY_INTERVAL_SECONDS = 30.0

# The SQLSTATE class of errors in the data, for example a character that the encoding lacks.
DATA_EXCEPTION = "22"

RunQuery = Callable[[Query[None]], Awaitable[None]]


def check_progress(fraction: object, message: object) -> tuple[float | None, str | None]:
    """Return what a task reports, or raise.

    Raises:
        TypeError: `fraction` is not a number or None, or `message` is not a string or None.
        ValueError: `fraction` is not from 0 to 1.
    """
    if fraction is not None:
        if not isinstance(fraction, Real) or isinstance(fraction, bool):
            raise TypeError(f"fraction must be a number from 0 to 1 or None, got {fraction!r}")
        try:
            number = float(fraction)
        except OverflowError:
            number = math.inf
        # NaN is in no range.
        if not 0 <= number <= 1:
            raise ValueError(f"fraction must be from 0 to 1, got {fraction!r}")
        fraction = number
    if message is not None:
        if not isinstance(message, str):
            raise TypeError(f"message must be a string or None, got {message!r}")
        # Each character has at least one byte.
        message = message[:MAX_MESSAGE_BYTES]
    return fraction, message


class ProgressBuffer:
    """The reports of one pool. Any thread may add one; only the heartbeat writes them."""

    def __init__(
        self, logger: Logger, *, retry_interval_seconds: float = RETRY_INTERVAL_SECONDS
    ) -> None:
        self._logger = logger
        self._retry_interval_seconds = retry_interval_seconds
        self._lock = threading.Lock()
        # What is not written yet, by the identity of the run: a thread may outlive its run, and
        # report while the next run of the same job does.
        self._reports: dict[int, tuple[ClaimedJob, ProgressReport]] = {}
        # Runs that may have a row in the table, by the id of the job.
        self._written: dict[int, ClaimedJob] = {}
        # When the rows of dead processes may be deleted. Once is enough.
        self._sweep_at = 0.0
        self._retry_at = 0.0
        self._last_problem: str | None = None

    def add(self, claimed: ClaimedJob, fraction: float | None, message: str | None) -> None:
        """Replace the last report of a run."""
        report = ProgressReport(
            claimed.job.id, claimed.pool_id, fraction, message, time.monotonic()
        )
        with self._lock:
            self._reports[id(claimed)] = claimed, report

    async def flush(
        self, run: RunQuery, list_claimed: Callable[[], Collection[ClaimedJob]]
    ) -> None:
        """Write the reports of jobs that the pool holds, and delete the rows of ended ones.

        Runs no statement if there is nothing to write. An error is logged once and does not reach
        the caller: the reports are written later.
        """
        if not self._reports and not self._written:
            return
        with self._lock:
            taken, self._reports = self._reports, {}
        # After the reports are taken, so that the job of each one is listed, unless it ended.
        held = {each.job.id: each for each in list_claimed()}
        taken = {key: each for key, each in taken.items() if held.get(each[1].job_id) is each[0]}
        runs = {claimed.job.id: claimed for claimed, _ in taken.values()}
        ended = {
            job_id: claimed.pool_id
            for job_id, claimed in self._written.items()
            if held.get(job_id) is not claimed and job_id not in runs
        }
        if not taken and not ended:
            return
        if time.monotonic() < self._retry_at:
            self._restore(taken)
            return
        before = self._written
        # Before the write, because its answer may be lost.
        self._written = before | runs
        try:
            await self._write(run, [report for _, report in taken.values()], ended)
        except Exception as error:
            if get_sqlstate(error) is not None:
                # The database wrote nothing.
                self._written = before
            self._restore(taken)
            self._report_problem(error)
            return
        self._last_problem = None
        for job_id in ended:
            del self._written[job_id]
        await self._sweep(run)

    async def _write(
        self, run: RunQuery, reports: list[ProgressReport], ended: dict[int, str]
    ) -> None:
        try:
            await run(write_progress(_prepare(reports, str), ended))
        except Exception as error:
            if not _is_data_error(error):
                raise
            # The encoding of the database lacks a character.
            await run(write_progress(_prepare(reports, escape_non_ascii), ended))

    async def _sweep(self, run: RunQuery) -> None:
        """Delete the rows of processes that died while no pool could recover their jobs."""
        if time.monotonic() < self._sweep_at:
            return
        try:
            await run(delete_orphaned_progress())
        except Exception as error:
            # The reports are written, so only this statement is retried.
            self._sweep_at = time.monotonic() + self._retry_interval_seconds
            self._logger.debug(
                "deleting progress of dead processes failed, retrying in %g s: %s",
                self._retry_interval_seconds,
                format_error_line(error),
            )
            return
        self._sweep_at = math.inf

    def _restore(self, taken: dict[int, tuple[ClaimedJob, ProgressReport]]) -> None:
        """Keep reports for the next write, unless the task has reported again."""
        with self._lock:
            self._reports = taken | self._reports

    def _report_problem(self, error: Exception) -> None:
        self._retry_at = time.monotonic() + self._retry_interval_seconds
        problem = format_error_line(error)
        if problem != self._last_problem:
            self._logger.warning(
                "writing progress failed, retrying every %g s: %s",
                self._retry_interval_seconds,
                problem,
            )
        self._last_problem = problem


def _prepare(reports: list[ProgressReport], convert: Callable[[str], str]) -> list[ProgressReport]:
    """Return the reports with messages that PostgreSQL can store."""
    return [
        each
        if each.message is None
        else replace(each, message=_make_storable(convert(each.message)))
        for each in reports
    ]


def _make_storable(message: str) -> str:
    # PostgreSQL cannot store NUL or half of a surrogate pair.
    encoded = message.replace("\x00", "␀").encode("utf-8", "replace")
    return encoded[:MAX_MESSAGE_BYTES].decode("utf-8", "ignore")


def _is_data_error(error: Exception) -> bool:
    # The client encoding of a caller's pool may lack a character.
    return (
        isinstance(error, UnicodeEncodeError) or (get_sqlstate(error) or "")[:2] == DATA_EXCEPTION
    )
