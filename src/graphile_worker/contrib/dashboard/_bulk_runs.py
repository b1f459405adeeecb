"""Changes of many jobs: a preview with a token, then a run in the background.

A run continues when the browser is closed. It ends with the process of the dashboard: what it had
changed until then stays changed, and the audit has it.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from graphile_worker._support.error_format import format_error_line
from graphile_worker.contrib.dashboard._api import Problem
from graphile_worker.contrib.dashboard._texts import ACTION_TEXTS
from graphile_worker.contrib.dashboard._users import Permission, User
from graphile_worker.contrib.dashboard._wording import (
    describe_run,
    describe_skipped,
    write_sentence,
)
from graphile_worker.ops.bulk import BulkPreview, BulkResult, plan_bulk_change
from graphile_worker.ops.job_actions import JobAction

if TYPE_CHECKING:
    from graphile_worker.contrib.dashboard._service import Service


TOKEN_SECONDS = 60.0
MAX_TOKENS = 1_000
# Previews of one user. A new one replaces the oldest.
MAX_OWN_TOKENS = 20

# Runs at once. Each uses one connection of the pool for changes while it works.
MAX_RUNNING = 2
MAX_KEPT_RUNS = 100

# The time between two events of a run.
EVENT_SECONDS = 0.25

ACTION_PERMISSIONS: Mapping[str, Permission] = {
    str(action): text.permission for action, text in ACTION_TEXTS.items()
}

logger = logging.getLogger("graphile_worker.dashboard")


class RunState(StrEnum):
    """What became of a run."""

    RUNNING = "running"
    DONE = "done"
    CANCELED = "canceled"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class BulkRun:
    """A change of many jobs, and how far it is."""

    id: str
    action: str
    by: str
    total: int
    state: RunState = RunState.RUNNING
    result: BulkResult = field(default_factory=BulkResult)
    error: str | None = None
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    ended_at: datetime | None = None
    task: "asyncio.Task[None] | None" = None
    started: float = field(default_factory=time.monotonic)
    ended: float | None = None
    published: float = 0.0

    @property
    def rate(self) -> float | None:
        """Jobs per second."""
        seconds = (self.ended or time.monotonic()) - self.started
        return (
            round(self.result.changed / seconds, 1) if seconds > 0 and self.result.changed else None
        )

    def show(self) -> dict[str, Any]:
        """Return the run as the API shows it."""
        rate, result = self.rate, self.result
        done = result.changed + result.gone + result.skipped_locked
        is_running = self.state is RunState.RUNNING
        return {
            "id": self.id,
            "action": self.action,
            "by": self.by,
            "state": self.state,
            "total": self.total,
            "changed": result.changed,
            "skipped_locked": result.skipped_locked,
            "gone": result.gone,
            "error": self.error,
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "rate": rate,
            "eta_seconds": round(max(0, self.total - done) / rate, 1)
            if is_running and rate
            else None,
            "done": done,
            "sentence": describe_run(
                JobAction(self.action),
                changed=result.changed,
                done=done,
                total=self.total,
                rate=rate,
                is_running=is_running,
                is_canceled=self.state is RunState.CANCELED,
            ),
            "notes": describe_skipped(result.skipped_locked, result.gone),
        }


@dataclass(frozen=True, slots=True)
class _Preview:
    action: str
    user: str
    preview: BulkPreview
    expires_at: float


class BulkRuns:
    """The previews and the runs of a dashboard."""

    def __init__(self, service: "Service") -> None:
        self._service = service
        self._previews: dict[str, _Preview] = {}
        self._runs: dict[str, BulkRun] = {}

    def add_preview(self, action: str, user: User, preview: BulkPreview) -> str:
        """Keep a preview for a minute, and return its token."""
        now = time.monotonic()
        self._previews = {
            token: each for token, each in self._previews.items() if each.expires_at > now
        }
        own = [token for token, each in self._previews.items() if each.user == user.name]
        for token in own[: max(0, len(own) - MAX_OWN_TOKENS + 1)]:
            del self._previews[token]
        if len(self._previews) >= MAX_TOKENS:
            raise Problem(429, "too_many_attempts", "too many previews. Try again in a minute.")
        token = secrets.token_urlsafe(24)
        self._previews[token] = _Preview(action, user.name, preview, now + TOKEN_SECONDS)
        return token

    def get_action(self, token: str, user: User) -> str:
        """Return the action of a preview, or raise if it is not of this user or too old."""
        return self._get_preview(token, user).action

    def start(self, token: str, user: User, limit: int | None) -> BulkRun:
        """Start a run. Each token starts one."""
        found = self._get_preview(token, user)
        max_jobs = self._service.max_bulk_jobs
        if count_matching(found.preview) > max_jobs:
            raise Problem(
                409,
                "too_many_jobs",
                f"one change is of at most {max_jobs:,} jobs. Narrow the filter, for example by "
                "task or age.",
            )
        running = sum(each.state is RunState.RUNNING for each in self._runs.values())
        if running >= MAX_RUNNING:
            raise Problem(
                409, "conflict", f"{running} changes are running. Wait until one has ended."
            )
        del self._previews[token]
        limits = [max_jobs, found.preview.limit or max_jobs, limit or max_jobs]
        preview = replace(found.preview, limit=min(limits))
        run = BulkRun(secrets.token_hex(8), found.action, user.name, preview.total)
        self._forget_old_runs()
        self._runs[run.id] = run
        run.task = asyncio.create_task(self._run(run, preview), name=f"bulk run {run.id}")
        return run

    def get(self, id: str) -> BulkRun:
        """Return a run."""
        run = self._runs.get(id)
        if run is None:
            raise Problem(
                404, "not_found", "this change is not known: the dashboard was restarted since"
            )
        return run

    def cancel(self, run: BulkRun) -> None:
        """Cancel a run. Jobs that it has changed stay changed."""
        if run.task is not None and run.state is RunState.RUNNING:
            run.task.cancel()

    async def close(self) -> None:
        """Cancel all runs, and wait for their ends."""
        tasks = [run.task for run in self._runs.values() if run.task is not None]
        for run in self._runs.values():
            self.cancel(run)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _get_preview(self, token: str, user: User) -> _Preview:
        found = self._previews.get(token)
        if found is None or found.expires_at <= time.monotonic() or found.user != user.name:
            raise Problem(409, "stale_token", "this preview is too old. Preview the change again.")
        return found

    def _forget_old_runs(self) -> None:
        ended = [each.id for each in self._runs.values() if each.state is not RunState.RUNNING]
        for id in ended[: max(0, len(self._runs) - MAX_KEPT_RUNS + 1)]:
            del self._runs[id]

    async def _run(self, run: BulkRun, preview: BulkPreview) -> None:
        def on_progress(result: BulkResult) -> None:
            run.result = result
            if time.monotonic() - run.published >= EVENT_SECONDS:
                self._publish(run)

        plan = plan_bulk_change(
            preview, self._service.schemas, on_progress=on_progress, actor=run.by
        )
        self._publish(run)
        try:
            run.result = await self._service.change(plan, is_long=True)
            run.state = RunState.DONE
        except asyncio.CancelledError:
            run.state = RunState.CANCELED
        except Problem as problem:
            run.state, run.error = RunState.FAILED, write_sentence(problem.detail)
        except Exception as error:
            logger.warning("change of jobs failed: %s", format_error_line(error))
            run.state, run.error = RunState.FAILED, format_error_line(error)
        finally:
            run.ended, run.ended_at = time.monotonic(), datetime.now(UTC)
            self._publish(run)

    def _publish(self, run: BulkRun) -> None:
        run.published = time.monotonic()
        self._service.publish("bulk", run.id, run.show())


def count_matching(preview: BulkPreview) -> int:
    """Count the jobs that a change without a limit would affect."""
    return replace(preview, limit=None).total


_RUNS: "WeakKeyDictionary[Any, BulkRuns]" = WeakKeyDictionary()


def get_bulk_runs(service: "Service") -> BulkRuns:
    """Return the runs of a dashboard."""
    runs = _RUNS.get(service)
    if runs is None:
        runs = _RUNS[service] = BulkRuns(service)
    return runs
