"""StartGuard: decides whether the task of a job may run, and records starts after a crash."""

from collections.abc import Collection
from datetime import timedelta

from graphile_worker._db.database import QueryRunner
from graphile_worker._db.retry import is_temporary
from graphile_worker._lease.lease import Lease
from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._sql.queries.workers import has_been_recovered, record_start
from graphile_worker._support.failpoints import failpoint
from graphile_worker._worker.outcomes import Failed, Interrupted
from graphile_worker._worker.payload_budget import PayloadBudget
from graphile_worker.errors import JobLockLostError, PayloadTooLarge, WorkerStoppedError
from graphile_worker.events import PoolFatalError
from graphile_worker.hooks import Hooks

# Delay of a job that must not run at the same time as another one.
RETRY_START_DELAY = timedelta(seconds=1)


class StartGuard:
    """Checks jobs before they start.

    The start of a recovered job is recorded before its task runs. If the job kills this process
    too, the pool that recovers it knows that it was running. A job that the next crash would
    quarantine does not run while another suspect runs: either of them could cause that crash.
    """

    def __init__(
        self,
        database: QueryRunner,
        lease: Lease,
        hooks: Hooks,
        *,
        max_crashes: int,
        paused_tasks: Collection[str] = (),
        payload_budget: PayloadBudget | None = None,
    ) -> None:
        self._payload_budget = payload_budget or PayloadBudget(database)
        self._db = database
        # Tasks whose jobs may not start for now.
        self._paused_tasks = paused_tasks
        self._lease = lease
        self._hooks = hooks
        self._last_chance_crashes = max_crashes - 1
        self._last_chance_job: ClaimedJob | None = None
        # Running jobs that were running at a crash, or may have been.
        self._suspect_ids: set[int] = set()

    def needs_check(self, claimed: ClaimedJob) -> bool:
        """Return whether to call `check_start`. Most jobs, which never failed, do not need it."""
        lease = self._lease
        return (
            claimed.job.last_error is not None
            or claimed.unread_bytes > 0
            or claimed.job.locked_by != lease.pool_id
            or not lease.can_start
            or claimed.job.task_identifier in self._paused_tasks
        )

    async def check_start(self, claimed: ClaimedJob) -> Interrupted | Failed | None:
        """Return an outcome if the task must not run now, or None if it may run."""
        if claimed.job.task_identifier in self._paused_tasks:
            # The job was claimed before the pause. Other pools may run it.
            return Interrupted(claimed)
        if claimed.unread_bytes and (outcome := await self._read_payload(claimed)) is not None:
            return outcome
        must_record = has_been_recovered(claimed.job) and self._lease.is_registered
        if must_record and not await self._record_start(claimed):
            return Interrupted(claimed, RETRY_START_DELAY)
        # Another pool may have recovered the job meanwhile.
        if claimed.pool_id != self._lease.pool_id or not self._lease.can_start:
            return Interrupted(claimed)
        return None

    def forget(self, claimed: ClaimedJob) -> None:
        """Stop counting a job as running, because its outcome is written."""
        self._suspect_ids.discard(claimed.job.id)
        self._release_last_chance(claimed)

    async def _read_payload(self, claimed: ClaimedJob) -> Interrupted | Failed | None:
        """Read a payload that did not come with the fetch, and return an outcome if that fails."""
        try:
            await self._payload_budget.read(claimed)
        except PayloadTooLarge as error:
            return Failed(claimed, error, is_permanent=True)
        except (WorkerStoppedError, JobLockLostError):
            return Interrupted(claimed)
        except Exception as error:
            self._hooks.emit(
                PoolFatalError(pool_id=claimed.pool_id, error=error, action="startJob")
            )
            return Interrupted(claimed, RETRY_START_DELAY)
        return None

    async def _record_start(self, claimed: ClaimedJob) -> bool:
        """Record that the job starts, and return whether it may start now.

        A job that the next crash would quarantine does not run at the same time as another suspect:
        it could be quarantined for a crash that the other one causes.
        """
        job_id = claimed.job.id
        # While a job has its last chance, only jobs that were not running at a crash may start.
        limit = self._last_chance_crashes if self._last_chance_job is None else 1
        self._suspect_ids.add(job_id)
        try:
            failpoint("before_start")
            count = await self._write_start(claimed, min(limit, self._last_chance_crashes))
            if count is None:
                self._suspect_ids.discard(job_id)
                if self._suspect_ids or self._last_chance_job is not None:
                    return False
                self._last_chance_job = claimed
                count = await self._write_start(claimed, None)
        except Exception as error:
            self.forget(claimed)
            self._hooks.emit(
                PoolFatalError(pool_id=claimed.pool_id, error=error, action="startJob")
            )
            # A permanent error must not prevent the job from running.
            return not is_temporary(error)
        if not count:
            self._suspect_ids.discard(job_id)
        if count is None or count < self._last_chance_crashes:
            self._release_last_chance(claimed)
        return count is not None

    async def _write_start(self, claimed: ClaimedJob, max_crashes: int | None) -> int | None:
        job = claimed.job
        return await self._db.run(
            record_start(job.id, claimed.pool_id, job.attempts, max_crashes=max_crashes)
        )

    def _release_last_chance(self, claimed: ClaimedJob) -> None:
        if self._last_chance_job is claimed:
            self._last_chance_job = None
