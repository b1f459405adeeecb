"""Before the task of a job runs: may it, and would others know that it ran?"""

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

# A job that must not run beside another is offered again after so long, to other pools too.
RETRY_START_DELAY = timedelta(seconds=1)


class StartGuard:
    """Lets jobs begin.

    That a job begins which a dead pool left behind is written first: if it kills this process too,
    whoever recovers it knows that it was running. A job that the next crash would quarantine runs
    beside no other that was running at a crash: whichever of two had killed the process, the first
    would be quarantined.
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
        # Tasks of which no job may start for now.
        self._paused_tasks = paused_tasks
        self._lease = lease
        self._hooks = hooks
        self._last_chance_crashes = max_crashes - 1
        self._last_chance_job: ClaimedJob | None = None
        # Jobs that were running at a crash, or may have been, and run now.
        self._suspect_ids: set[int] = set()

    def needs_check(self, claimed: ClaimedJob) -> bool:
        """Must `begin` be asked? Nearly always the job is of the usual kind and the lease holds."""
        lease = self._lease
        return (
            claimed.job.last_error is not None
            or claimed.unread_bytes > 0
            or claimed.job.locked_by != lease.pool_id
            or not lease.can_start
            or claimed.job.task_identifier in self._paused_tasks
        )

    async def check_start(self, claimed: ClaimedJob) -> Interrupted | Failed | None:
        """How the job ends if its task must not run, or not now."""
        if claimed.job.task_identifier in self._paused_tasks:
            # Fetched before that. This pool takes it no more, others may.
            return Interrupted(claimed)
        if claimed.unread_bytes and (ended := await self._read_payload(claimed)) is not None:
            return ended
        is_noted = has_been_recovered(claimed.job) and self._lease.is_registered
        if is_noted and not await self._record_start(claimed):
            return Interrupted(claimed, RETRY_START_DELAY)
        # Perhaps others took this pool for dead since it asked for the job.
        if claimed.pool_id != self._lease.pool_id or not self._lease.can_start:
            return Interrupted(claimed)
        return None

    def forget(self, claimed: ClaimedJob) -> None:
        """How it ended is written: whatever kills this process now, it was not running."""
        self._suspect_ids.discard(claimed.job.id)
        self._release_last_chance(claimed)

    async def _read_payload(self, claimed: ClaimedJob) -> Interrupted | Failed | None:
        """Read a payload that did not come with the fetch; how the job ends if that fails."""
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
        """Record that the job starts; False if it must not start now.

        A job that the next crash would quarantine runs beside no other job that was running at a
        crash, nor beside one of which that is not known yet: it would be quarantined for the other.
        """
        job_id = claimed.job.id
        # Beside a job at its last chance only jobs start that were not running at any crash.
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
            # What does not pass by itself must not keep the job from ever running.
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
