"""Make histories by hand, for tests of the checker."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

from tests.laboratory.history_checker.changes import RECOVERED
from tests.laboratory.history_checker.history import (
    Add,
    Change,
    CrontabRow,
    Final,
    History,
    JobRow,
    Op,
    QueueRow,
    Row,
)

MINUTE = 60.0
BEGIN = 1000 * MINUTE


class Story:
    """A history made by hand, 3 s per step, so that each step sees the one before.

    The name of a pool is that of its process and a letter: "py-1a" belongs to "py-1".
    """

    def __init__(self) -> None:
        self.history = History(tasks={1: "task"})
        self.now = BEGIN
        self.jobs: dict[int, JobRow] = {}
        self.queues: dict[int, QueueRow] = {}
        self.crontabs: dict[str, CrontabRow] = {}
        self._xid = 0
        self._is_together = False

    # Steps

    @contextmanager
    def together(self) -> Iterator[None]:
        """Make all steps of the block in one transaction."""
        self._step()
        was_together, self._is_together = self._is_together, True
        yield
        self._is_together = was_together

    def _step(self) -> None:
        if not self._is_together:
            self.now += 3
            self._xid += 1

    def _write(self, by: str, old: Row | None, new: Row | None) -> None:
        op: Op = "i" if old is None else "d" if new is None else "u"
        seq = len(self.history.changes) + 1
        self.history.changes.append(Change(seq, self.now, self._xid, op, by, 1, old, new))

    def change(self, job_id: int, by: str, **fields: Any) -> None:
        """Change any fields of a job."""
        self._step()
        old = self.jobs[job_id]
        new = _consistent(old._replace(**fields))
        self.jobs[job_id] = new
        self._write(by, old, new)

    def change_queue(self, queue: int | None, by: str, pool: str | None) -> None:
        if queue is None:
            return
        old = self.queues[queue]
        new = old._replace(locked_by=pool, locked_at=None if pool is None else self.now)
        self.queues[queue] = new
        self._write(by, old, new)

    def end(self) -> History:
        self.history.final = Final(tuple(self.jobs.values()), tuple(self.queues.values()))
        return self.history

    # Changes

    def add(self, job_id: int, by: str = "add-1", **fields: Any) -> None:
        with self.together():
            queue = fields.get("queue")
            if queue is not None and queue not in self.queues:
                self.queues[queue] = QueueRow(queue, f"queue {queue}", None, None)
                self._write(by, None, self.queues[queue])
            self.jobs[job_id] = new = job_row(job_id, self.now, **fields)
            self._write(by, None, new)

    def claim(self, job_id: int, pool: str, by: str | None = None, **fields: Any) -> None:
        with self.together():
            row = self.jobs[job_id]
            lock = {"locked_by": pool, "locked_at": self.now, "attempts": row.attempts + 1}
            self.change_queue(row.queue, by or process(pool), pool)
            self.change(job_id, by or process(pool), **{**lock, **fields})

    def release(self, job_id: int, by: str | None = None, **fields: Any) -> None:
        with self.together():
            row = self.jobs[job_id]
            by = by or process(cast(str, row.locked_by))
            self.change(job_id, by, **{"locked_by": None, "locked_at": None, **fields})
            self.change_queue(row.queue, by, None)

    def complete(self, job_id: int, by: str | None = None) -> None:
        with self.together():
            row = self.jobs.pop(job_id)
            by = by or process(row.locked_by or "admin-1")
            self._write(by, row, None)
            if row.locked_by is not None:
                self.change_queue(row.queue, by, None)

    def fail(self, job_id: int, by: str | None = None, **fields: Any) -> None:
        self.release(job_id, by, **{"error": "boom", "run_at": self.now + 6, **fields})

    def refund(self, job_id: int, by: str | None = None, **fields: Any) -> None:
        self.release(job_id, by, **{"attempts": self.jobs[job_id].attempts - 1, **fields})

    def recover(self, job_id: int, by: str = "py-9", **fields: Any) -> None:
        row = self.jobs[job_id]
        error = f"{RECOVERED}: it was held by pool {row.locked_by} since {self.now}"
        self.release(
            job_id,
            by,
            **{"error": error, "attempts": min(row.attempts, row.max_attempts - 1), **fields},
        )

    def detach(self, job_id: int, by: str = "add-1") -> None:
        """Take its key from a running job, as a replacement or a removal does."""
        self.change(job_id, by, key=None, attempts=self.jobs[job_id].max_attempts)

    def tick(
        self, identifier: str, minute: float, by: str = "py-1", job_id: int | None = None
    ) -> None:
        with self.together():
            old = self.crontabs.get(identifier)
            new = CrontabRow(identifier, BEGIN, minute)
            self.crontabs[identifier] = new
            self._write(by, old, new)
            if job_id is not None:
                self.add(job_id, by, payload=cron_payload(minute))

    def acknowledge(self, job_id: int, token: str, **more: Any) -> None:
        """Record an enqueue that returned the id of the job."""
        call = f"call {len(self.history.adds)}"
        began = Add("invoke", call, self.now - 3, (token,), **{**more, "position": self.now - 3})
        self.history.adds += [
            began,
            replace(began, step="ok", at=self.now, job_ids=(job_id,), position=self.now),
        ]

    def run_job(self, job_id: int, pool: str = "py-1a", **fields: Any) -> None:
        """Add, claim and complete a job."""
        self.add(job_id, **fields)
        self.claim(job_id, pool)
        self.complete(job_id)


def process(pool: str) -> str:
    return pool.rstrip("abc")


def token(name: str) -> str:
    return f'{{"token": "{name}"}}'


def cron_payload(minute: float) -> str:
    text = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(minute))
    return f'{{"_cron": {{"ts": "{text}", "backfilled": false}}}}'


def job_row(job_id: int, now: float, **fields: Any) -> JobRow:
    plain = JobRow(job_id, None, 1, "{}", 0, now, 0, 25, None, None, None, None, 0, True)
    return _consistent(plain._replace(**fields))


def _consistent(row: JobRow) -> JobRow:
    free = row.locked_at is None and row.attempts < row.max_attempts
    return row._replace(is_available=free)
