"""LimitedSeat: gives a worker limited jobs and other jobs in turns."""

from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._worker.limited_jobs import LimitedJobs
from graphile_worker._worker.shared_concurrency import SlotGate, WorkerSeat
from graphile_worker._worker.sources.base import JobSource


class LimitedSeat:
    """Takes the jobs of one worker: limited ones and others in turns, if both are ready."""

    def __init__(self, jobs: LimitedJobs, source: JobSource, gate: SlotGate | None = None) -> None:
        self._jobs = jobs
        self._source = source
        self._claimed: ClaimedJob | None = None
        # If pools share their concurrency, each job needs a slot of that too.
        self._seat = None if gate is None else WorkerSeat(gate, self)

    def take(self) -> ClaimedJob | None:
        """Return the next job if it can start at once."""
        self._end_job()
        self._claimed = self.take_buffered() if self._seat is None else self._seat.take()
        return self._claimed

    async def wait(self, worker_id: str) -> ClaimedJob | None:
        """Wait for a job. Return None if the source is closed."""
        seat = self._seat
        if seat is None:
            self._claimed = await self.wait_for_job(worker_id)
            return self._claimed
        while (claimed := await seat.wait(worker_id)) is not None:
            # It may have waited for a slot of the process.
            if not self._jobs.has_expired(claimed):
                break
            seat.leave()
            await self.release(claimed)
        self._claimed = claimed
        return claimed

    def leave(self) -> None:
        """Free what the last job needed to run."""
        self._end_job()
        if self._seat is not None:
            self._seat.leave()

    # For the seat of a shared concurrency, whose source this is

    def take_buffered(self) -> ClaimedJob | None:
        jobs = self._jobs
        if jobs.is_turn:
            claimed = jobs.take() or self._source.take_buffered()
        else:
            claimed = self._source.take_buffered() or jobs.take()
        if claimed is not None:
            jobs.record_start(claimed)
            jobs.request()
        return claimed

    async def wait_for_job(self, worker_id: str) -> ClaimedJob | None:
        jobs = self._jobs
        claimed = await jobs.ask() if jobs.is_turn else None
        if claimed is None:
            jobs.notice_waiting()
            claimed = await self._source.wait_for_job(worker_id)
        if claimed is not None:
            jobs.record_start(claimed)
        return claimed

    def put_back(self, claimed: ClaimedJob) -> None:
        if self._jobs.is_started(claimed):
            self._jobs.put_back(claimed)
        else:
            self._source.put_back(claimed)

    async def release(self, claimed: ClaimedJob) -> None:
        self._jobs.end(claimed)
        await self._source.release(claimed)

    def _end_job(self) -> None:
        if self._claimed is not None:
            self._jobs.end(self._claimed)
            self._claimed = None
