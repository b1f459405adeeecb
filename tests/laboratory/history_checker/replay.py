"""Replay a history change by change, and check each change of a job and of a named queue."""

import re
from array import array
from bisect import bisect_right
from collections import defaultdict
from dataclasses import replace
from typing import NamedTuple

from tests.laboratory.history_checker.changes import (
    NOT_STARTED,
    QUARANTINED,
    RECOVERED,
    Kind,
    classify,
)
from tests.laboratory.history_checker.crontabs import CrontabRules
from tests.laboratory.history_checker.expectations import Expectations
from tests.laboratory.history_checker.fault_times import FaultTimes
from tests.laboratory.history_checker.findings import Findings, violation_of
from tests.laboratory.history_checker.history import (
    Change,
    CrontabRow,
    History,
    JobRow,
    QueueRow,
)
from tests.laboratory.history_checker.report import Report, Violation
from tests.laboratory.history_checker.waiting import Position, WaitingJobs, is_at

_TOKEN = re.compile(r'"token"\s*:\s*"([^"]+)"')


class End(NamedTuple):
    """The end of a claim by its holder, which counts the attempt."""

    job_id: int
    task: int
    pool: str
    attempt: int
    succeeded: bool
    is_last: bool
    """Whether the job cannot run again."""
    may_be_release: bool = False
    """Whether the holder may have released the job: that deletes a job that lost its key."""


class KnownJob:
    """What the changes so far show of a job that exists."""

    __slots__ = (
        "attempt",
        "changed_at",
        "claimed_at",
        "ended_by",
        "holder",
        "is_detached",
        "lost_by",
        "recoveries",
        "row",
        "suspects",
    )

    def __init__(self, row: JobRow, at: float) -> None:
        self.row = row
        self.changed_at = at
        self.holder: str | None = None
        self.claimed_at = 0.0
        # The number of the claimed attempt. A detachment changes that of the row.
        self.attempt = row.attempts
        # Whether it lost its key after it was claimed.
        self.is_detached = False
        # The process that ended it last, and those from which it was recovered.
        self.ended_by: str | None = None
        self.lost_by: set[str] | None = None
        self.recoveries = 0
        # Claims that should have taken this job instead, unless it was locked at that moment.
        self.suspects: list[tuple[float, Violation]] | None = None


class Replay:
    """Reads all changes of a history; afterwards its attributes describe the end of the run."""

    def __init__(
        self, history: History, expectations: Expectations, report: Report, faults: FaultTimes
    ) -> None:
        self._history = history
        self._expectations = expectations
        self._report = report
        self._faults = faults
        self._findings = Findings(report, expectations)
        self.jobs: dict[int, KnownJob] = {}
        self.deleted: set[int] = set()
        self.completed: set[int] = set()
        self.ends: list[End] = []
        self.queues: dict[int, QueueRow] = {}
        # The holders of claimed jobs, per named queue.
        self.claimed_in: dict[int, dict[int, str]] = defaultdict(dict)
        # The jobs in whose payload a token was found.
        self.tokens: dict[str, set[int]] = defaultdict(set)
        self.crontabs = CrontabRules(self._findings)
        # Seconds from a SIGKILL until a job of that process could be claimed.
        self.recovery_seconds: list[float] = []
        self.claim_times = array("d")
        self.last_end: float | None = None
        self._processes: dict[str, str] = {}
        self._tasks_of: dict[str, set[int]] = defaultdict(set)
        self._job_of_key: dict[str, int] = {}
        self._waiting = WaitingJobs()
        self._waiting_in: dict[int, WaitingJobs] = defaultdict(WaitingJobs)

    def run(self) -> None:
        self._read_pool_names()
        for change in self._history.changes:
            row = change.new if change.new is not None else change.old
            if isinstance(row, JobRow):
                self._see_job(change, change.old, change.new)  # type: ignore[arg-type]
            elif isinstance(row, QueueRow):
                self._see_queue(change, change.old, change.new)  # type: ignore[arg-type]
            elif isinstance(row, CrontabRow):
                self.crontabs.see_row(change, change.old, change.new)  # type: ignore[arg-type]
        # A job without later changes was not locked when another was claimed before it.
        for job in self.jobs.values():
            for _, violation in job.suspects or ():
                self._add_order(violation)
            job.suspects = None

    def process_of(self, pool: str | None) -> str | None:
        """Return the process of a pool; a pool that claimed nothing is its own process."""
        return None if pool is None else self._processes.get(pool, pool)

    def _read_pool_names(self) -> None:
        for change in self._history.changes:
            new, old = change.new, change.old
            if not isinstance(new, JobRow) or not isinstance(old, JobRow):
                continue
            if new.locked_by is not None and old.locked_by != new.locked_by:
                self._tasks_of[change.app].add(new.task)
                self._processes.setdefault(new.locked_by, change.app)

    # Jobs

    def _see_job(self, change: Change, old: JobRow | None, new: JobRow | None) -> None:
        job = self._known(change, old, new)
        by_holder = old is not None and self.process_of(old.locked_by) == change.app
        kind = classify(old, new, by_holder=by_holder, at=change.at, is_detached=job.is_detached)
        self._report.kinds[kind.name.lower().replace("_", " ")] += 1
        self._check_suspects(job, change)
        self._check_kind(kind, job, change, old, new)
        if new is None:
            assert old is not None
            self._forget(old)
        else:
            self._keep(job, new, change)

    def _known(self, change: Change, old: JobRow | None, new: JobRow | None) -> KnownJob:
        """Return what is known of the job, as it was before this change."""
        row = old or new
        assert row is not None
        job = self.jobs.get(row.id)
        if (job.row if job else None) != old:
            what = f"was {job and job.row}, but the change starts from {old}"
            self._findings.add_change("gaps", change, what)
        if old is None and row.id in self.deleted:
            self._findings.add_change("gaps", change, "exists again after it was deleted")
        if job is None:
            job = self.jobs[row.id] = KnownJob(row, change.at)
        if old is not None:
            job.row = old
            if old.locked_by is not None and job.holder is None:
                # Locked before the record began, or by a change that is missing.
                job.holder = self.process_of(old.locked_by)
        return job

    def _check_suspects(self, job: KnownJob, change: Change) -> None:
        """Drop suspicions that this change explains: it may have locked the job at that time."""
        if job.suspects is None:
            return
        for at, violation in job.suspects:
            if (later := change.at - at) > self._expectations.slack:
                untouched = f"{violation.what}, unchanged for {later:.1f} s more"
                self._add_order(replace(violation, what=untouched))
        job.suspects = None

    def _check_kind(
        self, kind: Kind, job: KnownJob, change: Change, old: JobRow | None, new: JobRow | None
    ) -> None:
        match kind:
            case Kind.ADD:
                assert new is not None
                self._see_add(job, change, new)
            case Kind.CLAIM | Kind.TAKEOVER:
                assert old is not None
                assert new is not None
                self._see_claim(kind, job, change, old, new)
            case Kind.COMPLETION | Kind.FAILURE | Kind.REFUND | Kind.RECOVERY | Kind.FOREIGN_END:
                assert old is not None
                self._see_end(kind, job, change, old, new)
            case Kind.EDIT | Kind.REMOVAL:
                assert old is not None
                self._see_edit(job, change, old, new)
            case Kind.REPLACEMENT:
                assert old is not None
                assert new is not None
                self._see_replacement(job, change, old, new)
            case Kind.RENEWAL | Kind.DETACHMENT | Kind.TOUCH:
                assert old is not None
                assert new is not None
                self._see_renewal(kind, job, change, old, new)

    def _see_add(self, job: KnownJob, change: Change, new: JobRow) -> None:
        self._note_tokens(new)
        job.holder = self.process_of(new.locked_by)
        if change.op == "s":
            if job.holder is not None and new.queue is not None:
                self.claimed_in[new.queue][new.id] = job.holder
            return
        if new.attempts != 0:
            what = f"begins with {new.attempts} attempts"
            self._findings.add_change("attempts_drift", change, what)
        self.crontabs.see_job(change, new)

    def _note_tokens(self, row: JobRow) -> None:
        for token in _TOKEN.findall(row.payload):
            self.tokens[token].add(row.id)

    def _see_claim(
        self, kind: Kind, job: KnownJob, change: Change, old: JobRow, new: JobRow
    ) -> None:
        self.claim_times.append(change.at)
        owner = self.process_of(new.locked_by)
        if kind is Kind.TAKEOVER:
            what = f"claimed by {new.locked_by} while {old.locked_by} held it"
            self._findings.add_change("double_held", change, what, self.process_of(old.locked_by))
        if owner != change.app:
            what = f"claimed in the name of {new.locked_by}"
            self._findings.add_change("fence_breaks", change, what, owner)
        if new.attempts != old.attempts + 1 or old.attempts >= old.max_attempts:
            self._add_drift(change, old, new)
        if change.at < old.run_at:
            what = f"claimed {old.run_at - change.at:.3f} s before its time"
            self._findings.add_change("early", change, what)
        self._check_payload(change, old, new)
        self._check_order(change, old, new)
        job.holder = change.app
        job.claimed_at = change.at
        job.attempt = new.attempts
        job.is_detached = False
        if job.lost_by:
            job.lost_by.discard(change.app)

    def _check_order(self, change: Change, old: JobRow, new: JobRow) -> None:
        if old.queue is None:
            self._suspect("priority", change, self._better(change, old, new, self._waiting))
            return
        claimed = self.claimed_in[old.queue]
        for job_id, holder in claimed.items():
            if job_id != new.id:
                what = f"claimed from queue {old.queue} while {holder} held job {job_id} of it"
                self._findings.add_change("queue_overlap", change, what, holder)
        claimed[new.id] = change.app
        better = self._better(change, old, new, self._waiting_in[old.queue])
        self._suspect("queue_order", change, better)

    def _better(
        self, change: Change, old: JobRow, new: JobRow, waiting: WaitingJobs
    ) -> KnownJob | None:
        """Return the best waiting job that should have been claimed instead."""
        moment = min(new.locked_at or change.at, change.at)
        tasks = self._tasks_of[change.app]
        # Jobs without a queue may be claimed in the order of time alone.
        bound = (old.priority, old.run_at, old.id if old.queue is not None else -1)

        def is_ready(position: Position) -> bool | None:
            job = self.jobs.get(position[2])
            if job is None or not is_at(job.row, position) or job.row.queue != old.queue:
                return None
            if job.row.task not in tasks or position[1] > moment or position[2] == old.id:
                return False
            return self._visible_at(job.changed_at) < moment

        found = waiting.best_before(bound, is_ready)
        return None if found is None else self.jobs[found[2]]

    def _visible_at(self, changed_at: float) -> float:
        """Return when a change was visible to all; a commit may wait until a fault is over."""
        slack = self._expectations.slack
        return max(changed_at, self._faults.over_at(changed_at + slack)) + slack

    def _suspect(self, rule: str, change: Change, better: KnownJob | None) -> None:
        if better is None:
            return
        what = f"claimed though job {better.row.id} was better"
        better.suspects = better.suspects or []
        better.suspects.append((change.at, violation_of(rule, change, what)))

    def _add_order(self, violation: Violation) -> None:
        counts = violation.rule != "priority" or self._expectations.strict_priority
        self._findings.add(violation, counts=counts)

    def _see_end(
        self, kind: Kind, job: KnownJob, change: Change, old: JobRow, new: JobRow | None
    ) -> None:
        holder = job.holder or self.process_of(old.locked_by)
        self.last_end = change.at
        if kind is Kind.FOREIGN_END:
            what = f"changed though {old.locked_by} held it"
            self._findings.add_change("fence_breaks", change, what, holder)
            if new is not None and new.locked_by is not None:
                return
        if kind is Kind.COMPLETION:
            self.completed.add(old.id)
        if kind in (Kind.COMPLETION, Kind.FAILURE):
            assert old.locked_by is not None
            is_last = new is None or new.attempts >= new.max_attempts
            end = End(
                old.id,
                old.task,
                old.locked_by,
                job.attempt,
                new is None,
                is_last,
                may_be_release=new is None and job.is_detached,
            )
            self.ends.append(end)
        if kind is Kind.RECOVERY:
            assert new is not None
            self._see_recovery(job, change, new, holder)
        else:
            job.ended_by = change.app
        if new is not None:
            if kind is not Kind.FOREIGN_END and not _attempts_fit(kind, old, new):
                self._add_drift(change, old, new, holder)
            if kind is not Kind.FAILURE:
                self._check_payload(change, old, new)
        if old.queue is not None:
            self.claimed_in[old.queue].pop(old.id, None)
        job.holder = None

    def _see_recovery(self, job: KnownJob, change: Change, new: JobRow, holder: str | None) -> None:
        if holder is not None:
            job.lost_by = (job.lost_by or set()) | {holder}
            self._measure_recovery(job, holder, max(change.at, new.run_at))
        job.ended_by = None
        error = new.error or ""
        if error.startswith(RECOVERED) and not error.startswith(NOT_STARTED):
            job.recoveries += 1
            limit = self._expectations.max_crashes
            if limit is not None and job.recoveries > limit:
                what = f"recovered {job.recoveries} times while it ran"
                self._findings.add_change("attempts_drift", change, what, holder)
        if error.startswith(QUARANTINED):
            job.recoveries = 0

    def _measure_recovery(self, job: KnownJob, holder: str, free_at: float) -> None:
        kills = self._faults.kills.get(holder, ())
        which = bisect_right(kills, free_at) - 1
        # A claim that was on its way may have been committed a little after the death.
        if which >= 0 and kills[which] >= job.claimed_at - self._expectations.slack:
            self.recovery_seconds.append(free_at - kills[which])

    def _see_edit(self, job: KnownJob, change: Change, old: JobRow, new: JobRow | None) -> None:
        """Check which process changes or deletes a job that is not claimed."""
        what = "deleted" if new is None else "changed"
        if new is not None:
            self._check_payload(change, old, new)
            job.recoveries = 0
        if not old.is_available and new is None:
            # A cleanup deletes a permanently failed job.
            return
        if job.lost_by and change.app in job.lost_by:
            self._findings.add_change(
                "fence_breaks", change, f"{what} by a process that had lost it"
            )
        elif change.app == job.ended_by:
            self._findings.add_change(
                "second_ends", change, f"{what} by the process that had ended it"
            )
        elif new is None and old.key is None and change.app in self._tasks_of:
            self._findings.add_change("lost", change, "deleted by a worker that had not claimed it")

    def _see_replacement(self, job: KnownJob, change: Change, old: JobRow, new: JobRow) -> None:
        if old.key is None or new.key != old.key or new.revision != old.revision + 1:
            what = f"from revision {old.revision} to {new.revision}"
            self._findings.add_change("key_breaks", change, what)
        if new.attempts != 0:
            self._add_drift(change, old, new)
        self._note_tokens(new)
        self.crontabs.see_job(change, new)
        job.recoveries = 0
        job.ended_by = None
        job.lost_by = None

    def _see_renewal(
        self, kind: Kind, job: KnownJob, change: Change, old: JobRow, new: JobRow
    ) -> None:
        if kind is Kind.RENEWAL and change.app != self.process_of(old.locked_by):
            what = "lock renewed by another process"
            self._findings.add_change("fence_breaks", change, what, job.holder)
        if kind is Kind.DETACHMENT:
            job.is_detached = True
        elif new.attempts != old.attempts:
            self._add_drift(change, old, new, job.holder)
        self._check_payload(change, old, new)

    def _check_payload(self, change: Change, old: JobRow, new: JobRow) -> None:
        if new.payload != old.payload:
            what = f"payload {old.payload} became {new.payload}"
            self._findings.add_change("key_breaks", change, what)

    def _add_drift(self, change: Change, old: JobRow, new: JobRow, *processes: str | None) -> None:
        what = f"from {old.attempts} to {new.attempts} of {new.max_attempts} attempts"
        self._findings.add_change("attempts_drift", change, what, *processes)

    def _keep(self, job: KnownJob, new: JobRow, change: Change) -> None:
        old = job.row
        if old.key != new.key and old.key is not None and self._job_of_key.get(old.key) == new.id:
            del self._job_of_key[old.key]
        if new.key is not None and (change.old is None or old.key != new.key):
            other = self._job_of_key.get(new.key)
            if other is not None and other != new.id:
                what = f"has the key {new.key!r} of job {other}"
                self._findings.add_change("key_breaks", change, what)
            self._job_of_key[new.key] = new.id
        job.row = new
        job.changed_at = change.at
        if new.is_available:
            waiting = self._waiting if new.queue is None else self._waiting_in[new.queue]
            waiting.add(new)

    def _forget(self, old: JobRow) -> None:
        self.deleted.add(old.id)
        del self.jobs[old.id]
        if old.key is not None and self._job_of_key.get(old.key) == old.id:
            del self._job_of_key[old.key]
        if old.queue is not None:
            self.claimed_in[old.queue].pop(old.id, None)

    # Named queues

    def _see_queue(self, change: Change, old: QueueRow | None, new: QueueRow | None) -> None:
        row = new or old
        assert row is not None
        known = self.queues.get(row.id)
        if known != old:
            what = f"queue was {known}, but the change starts from {old}"
            self._findings.add_change("gaps", change, what)
        if new is None:
            self.queues.pop(row.id, None)
            return
        self.queues[new.id] = new
        if old is None or old.locked_by is None or new.locked_by in (None, old.locked_by):
            return
        what = f"queue {new.name!r} was claimed by {new.locked_by} while {old.locked_by} held it"
        self._findings.add_change("queue_overlap", change, what, self.process_of(old.locked_by))


def _attempts_fit(kind: Kind, old: JobRow, new: JobRow) -> bool:
    """Return whether the attempts after an end are those that this kind of end leaves."""
    spent, limit = old.attempts, old.max_attempts
    if new.max_attempts != limit:
        return False
    if kind is Kind.RECOVERY:
        # A recovery never spends the last attempt, unless it quarantines the job.
        return new.attempts in (spent, max(0, spent - 1), min(spent, limit - 1), limit)
    if kind is Kind.REFUND:
        return True
    return new.attempts in (spent, limit)
