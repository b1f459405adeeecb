"""Before the task of a job runs: may it, and would others know that it ran?"""

from collections.abc import Collection
from datetime import timedelta

from graphile_worker.db.database import Answering
from graphile_worker.db.retry import is_passing
from graphile_worker.errors import JobNotHeld, PayloadTooLarge, PoolStopped
from graphile_worker.events import PoolFatalError
from graphile_worker.failpoints import failpoint
from graphile_worker.hooks import Hooks
from graphile_worker.lease import Lease
from graphile_worker.sql.holding import HeldJob
from graphile_worker.sql.workers import has_been_recovered, note_start
from graphile_worker.worker.outcomes import Failed, Interrupted
from graphile_worker.worker.payloads import Payloads

# A job that must not run beside another is offered again after so long, to other pools too.
NOT_YET = timedelta(seconds=1)


class Starts:
    """Lets jobs begin.

    That a job begins which a dead pool left behind is written first: if it kills this process too,
    whoever recovers it knows that it was running. And of those that the next recovery would park
    only one runs at a time: whichever of two had killed the process, both would be parked.
    """

    def __init__(
        self,
        database: Answering,
        lease: Lease,
        hooks: Hooks,
        *,
        max_recoveries: int,
        paused: Collection[str] = (),
        payloads: Payloads | None = None,
    ) -> None:
        self._payloads = payloads or Payloads(database)
        self._db = database
        # Tasks of which no job may start for now.
        self._paused = paused
        self._lease = lease
        self._hooks = hooks
        self._last_chance = max_recoveries - 1
        self._suspect: HeldJob | None = None

    def must_ask(self, held: HeldJob) -> bool:
        """Must `begin` be asked? Nearly always the job is of the usual kind and the lease holds."""
        lease = self._lease
        return (
            held.job.last_error is not None
            or held.unread_bytes > 0
            or held.job.locked_by != lease.pool_id
            or not lease.lets_start
            or held.job.task_identifier in self._paused
        )

    async def begin(self, held: HeldJob) -> Interrupted | Failed | None:
        """How the job ends if its task must not run, or not now."""
        if held.job.task_identifier in self._paused:
            # Fetched before that. This pool takes it no more, others may.
            return Interrupted(held)
        if held.unread_bytes and (ended := await self._read(held)) is not None:
            return ended
        is_noted = has_been_recovered(held.job) and self._lease.is_registered
        if is_noted and not await self._note(held):
            return Interrupted(held, NOT_YET)
        # Perhaps others took this pool for dead since it asked for the job.
        if held.pool_id != self._lease.pool_id or not self._lease.lets_start:
            return Interrupted(held)
        return None

    def end(self, held: HeldJob) -> None:
        """How it ended is written: whatever kills this process now, it was not running."""
        if self._suspect is held:
            self._suspect = None

    async def _read(self, held: HeldJob) -> Interrupted | Failed | None:
        """Read a payload that did not come with the fetch; how the job ends if that fails."""
        try:
            await self._payloads.read(held)
        except PayloadTooLarge as error:
            return Failed(held, error, give_up=True)
        except (PoolStopped, JobNotHeld):
            return Interrupted(held)
        except Exception as error:
            self._hooks.emit(PoolFatalError(pool_id=held.pool_id, error=error, action="startJob"))
            return Interrupted(held, NOT_YET)
        return None

    async def _note(self, held: HeldJob) -> bool:
        is_alone = self._suspect is None
        if is_alone:
            # Until the answer says that it need not be.
            self._suspect = held
        fewer_than = None if is_alone else self._last_chance
        try:
            failpoint("before_start")
            count = await self._db.run(
                note_start(held.job.id, held.pool_id, held.job.attempts, fewer_than=fewer_than)
            )
        except Exception as error:
            self.end(held)
            self._hooks.emit(PoolFatalError(pool_id=held.pool_id, error=error, action="startJob"))
            # What does not pass by itself must not keep the job from ever running.
            return not is_passing(error)
        if count is None or count < self._last_chance:
            self.end(held)
        return count is not None
