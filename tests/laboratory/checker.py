"""Was every promise kept? A judge of histories that knows nothing of the code that made them.

It reads what the database recorded, change by change, and says of each what it was by what became
of the row: see kinds.py. Which process a pool belongs to is told by its claims: whoever commits one
has the pool's name. So a process needs an application name of its own, and one that takes its place
needs another one; and whoever removes, fails or reschedules jobs is no worker. Within one process,
the database cannot tell an old pool's writes from a new one's.

Across rows, the order of `seq` is that of statements, not of commits. So a job counts as passed
over only if it was ready for `slack` seconds before a fetch, and is left alone as long afterwards;
if it is of a task that the process takes; and if it is of the same named queue, or of none as well.
"""

import re
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from heapq import heappop, heappush

from tests.laboratory.history import (
    Add,
    Body,
    Change,
    CrontabRow,
    Fault,
    History,
    JobRow,
    QueueRow,
)
from tests.laboratory.kinds import NOT_STARTED, QUARANTINED, RECOVERED, Kind, classify
from tests.laboratory.report import EXAMPLES, Report, Violation


@dataclass(frozen=True, kw_only=True)
class Run:
    """What the run was like, and what is asked of it."""

    # Only what is about these processes is counted, of I2 to I5, I7, I8 and L5; None is all.
    held_by: Callable[[str], bool] | None = None
    # Processes that still work at the end: what they hold is theirs.
    alive: Container[str] = ()
    # Minutes at which each crontab must have run, no others; None is not to look.
    cron: Mapping[str, Iterable[float]] | None = None
    # Tasks whose effect is committed with their job's end.
    transactional: Container[str] = ()
    # Whether a fetch must take the best jobs first (I12); told apart if not.
    strict_priority: bool = False
    # Whether all that could run has had the time to.
    must_finish: bool = False
    max_crashes: int | None = 3
    # How far a standby had come that was promoted: later enqueues are lost, and only they.
    durable_until: float | None = None
    # When the last fault was over.
    healed_at: float | None = None
    # Processes that ended by themselves.
    exits: Sequence[str] = ()
    # Seconds: see above.
    slack: float = 1.0


def check(history: History, run: Run | None = None) -> Report:
    """All that is wrong with a history."""
    return _Checker(history, run or Run()).check()


# Those that `held_by` is about.
_OF_HOLDERS = {
    "double_held",
    "fence_breaks",
    "queue_overlap",
    "queue_order",
    "attempts_drift",
    "orphan_locks",
    "second_ends",
    "exits",
}


class _Job:
    """What is known of a job that is there."""

    __slots__ = (
        "claimed_at",
        "ended_by",
        "holder",
        "is_detached",
        "lost_by",
        "recoveries",
        "row",
        "since",
        "suspects",
    )

    def __init__(self, row: JobRow, at: float) -> None:
        self.row = row
        # Nobody has touched it since.
        self.since = at
        self.holder: str | None = None
        self.claimed_at = 0.0
        # Has it lost its key since it was claimed?
        self.is_detached = False
        # Who let go of it at last, and who was robbed of it.
        self.ended_by: str | None = None
        self.lost_by: set[str] | None = None
        self.recoveries = 0
        # Claims that should have taken this one instead, unless it proves to have been busy.
        self.suspects: list[tuple[float, Violation]] | None = None


# Priority, time and id: in this order jobs are taken.
Place = tuple[int, float, int]

# Of jobs that are not ready yet, so many are looked behind.
_FEW = 20


class _Line:
    """Jobs that wait, best first."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[Place] = []

    def add(self, row: JobRow) -> None:
        heappush(self._heap, (row.priority, row.run_at, row.id))

    def best_before(self, bound: Place, is_ready: Callable[[Place], bool | None]) -> Place | None:
        """The best that is ready, if it comes before the bound; what is None is forgotten."""
        aside: list[Place] = []
        found = None
        while self._heap and self._heap[0] < bound and len(aside) < _FEW:
            place = self._heap[0]
            ready = is_ready(place)
            if ready:
                found = place
                break
            heappop(self._heap)
            if ready is False:
                aside.append(place)
        for place in aside:
            heappush(self._heap, place)
        return found


class _Checker:
    def __init__(self, history: History, run: Run) -> None:
        self._history = history
        self._run = run
        self._report = Report()
        self._jobs: dict[int, _Job] = {}
        self._gone: set[int] = set()
        self._completed: set[int] = set()
        self._pools: dict[str, str] = {}
        self._keys: dict[str, int] = {}
        self._queues: dict[int, QueueRow] = {}
        # Jobs that are held, per named queue.
        self._held_in: dict[int, dict[int, str]] = defaultdict(dict)
        self._line = _Line()
        self._lines: dict[int, _Line] = defaultdict(_Line)
        self._tasks_of: dict[str, set[int]] = defaultdict(set)
        self._tokens: dict[str, set[int]] = defaultdict(set)
        self._crontabs: dict[str, CrontabRow] = {}
        self._ticks: dict[str, Counter[float]] = defaultdict(Counter)
        # Ticks and jobs of a minute in one transaction.
        self._noted: Counter[tuple[int, float]] = Counter()
        self._cron_jobs: Counter[tuple[int, float]] = Counter()
        self._kills = _kills(history.faults)
        self._fault_starts, self._fault_ends = _windows(history.faults)
        self._recovery: list[float] = []
        self._claims = array("d")
        self._last_end: float | None = None

    def check(self) -> Report:
        self._learn_names()
        for change in self._history.changes:
            row = change.new if change.new is not None else change.old
            if isinstance(row, JobRow):
                self._see_job(change, change.old, change.new)  # type: ignore[arg-type]
            elif isinstance(row, QueueRow):
                self._see_queue(change, change.old, change.new)  # type: ignore[arg-type]
            elif isinstance(row, CrontabRow):
                self._see_crontab(change, change.old, change.new)  # type: ignore[arg-type]
        self._check_suspects()
        self._check_final()
        self._check_adds()
        self._check_locks()
        self._check_cron()
        self._check_effects()
        self._check_ends()
        self._check_bodies()
        self._measure()
        return self._report

    def _learn_names(self) -> None:
        for change in self._history.changes:
            new, old = change.new, change.old
            if not isinstance(new, JobRow) or not isinstance(old, JobRow):
                continue
            if new.locked_by is not None and old.locked_by != new.locked_by:
                self._tasks_of[change.app].add(new.task)
                self._pools.setdefault(new.locked_by, change.app)

    # Jobs

    def _see_job(self, change: Change, old: JobRow | None, new: JobRow | None) -> None:
        job = self._known(change, old, new)
        by_holder = old is not None and self._owner(old.locked_by) == change.app
        kind = classify(old, new, by_holder=by_holder, at=change.at, is_detached=job.is_detached)
        self._report.kinds[kind.name.lower().replace("_", " ")] += 1
        self._clear(job, change)
        self._judge(kind, job, change, old, new)
        if new is None:
            assert old is not None
            self._forget(old)
        else:
            self._keep(job, new, change)

    def _known(self, change: Change, old: JobRow | None, new: JobRow | None) -> _Job:
        """The job of this row, as it was until now."""
        row = old or new
        assert row is not None
        job = self._jobs.get(row.id)
        if (job.row if job else None) != old:
            self._report_change(
                "gaps", change, f"was {job and job.row}, is said to have been {old}"
            )
        if old is None and row.id in self._gone:
            self._report_change("gaps", change, "is there again after it was gone")
        if job is None:
            job = self._jobs[row.id] = _Job(row, change.at)
        if old is not None:
            job.row = old
            if old.locked_by is not None and job.holder is None:
                # Locked since before anybody looked, or unseen.
                job.holder = self._owner(old.locked_by)
        return job

    def _owner(self, pool: str | None) -> str | None:
        """The process of a pool; a stranger's is the pool itself."""
        return None if pool is None else self._pools.get(pool, pool)

    def _clear(self, job: _Job, change: Change) -> None:
        """A job that was changed so soon may have been locked when others were taken before it."""
        if job.suspects is None:
            return
        for at, violation in job.suspects:
            if (later := change.at - at) > self._run.slack:
                untouched = f"{violation.what}, untouched for {later:.1f} s more"
                self._say_priority(replace(violation, what=untouched))
        job.suspects = None

    def _judge(
        self, kind: Kind, job: _Job, change: Change, old: JobRow | None, new: JobRow | None
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
                self._see_meddling(job, change, old, new)
            case Kind.REPLACEMENT:
                assert old is not None
                assert new is not None
                self._see_replacement(job, change, old, new)
            case Kind.RENEWAL | Kind.DETACHMENT | Kind.TOUCH:
                assert old is not None
                assert new is not None
                self._see_little(kind, job, change, old, new)

    def _see_add(self, job: _Job, change: Change, new: JobRow) -> None:
        self._note_tokens(new)
        job.holder = self._owner(new.locked_by)
        if change.op == "s":
            if job.holder is not None and new.queue is not None:
                self._held_in[new.queue][new.id] = job.holder
            return
        if new.attempts != 0:
            self._report_change("attempts_drift", change, f"begins with {new.attempts} attempts")
        self._note_cron(change, new)

    def _note_tokens(self, row: JobRow) -> None:
        for token in _TOKEN.findall(row.payload):
            self._tokens[token].add(row.id)

    def _see_claim(self, kind: Kind, job: _Job, change: Change, old: JobRow, new: JobRow) -> None:
        self._claims.append(change.at)
        owner = self._owner(new.locked_by)
        if kind is Kind.TAKEOVER:
            held = f"held by {old.locked_by}, was taken by {new.locked_by}"
            self._report_change("double_held", change, held, self._owner(old.locked_by))
        if owner != change.app:
            self._report_change(
                "fence_breaks", change, f"taken in the name of {new.locked_by}", owner
            )
        if new.attempts != old.attempts + 1 or old.attempts >= old.max_attempts:
            self._drift(change, old, new)
        if change.at < old.run_at:
            self._report_change(
                "early", change, f"taken {old.run_at - change.at:.3f} s before its time"
            )
        self._check_payload(change, old, new)
        self._check_turn(change, old, new)
        job.holder = change.app
        job.claimed_at = change.at
        job.is_detached = False
        if job.lost_by:
            job.lost_by.discard(change.app)

    def _check_turn(self, change: Change, old: JobRow, new: JobRow) -> None:
        if old.queue is not None:
            self._check_queue(change, old.queue, new)
            better = self._better(change, old, new, self._lines[old.queue])
            self._suspect("queue_order", change, better)
            return
        self._suspect("priority", change, self._better(change, old, new, self._line))

    def _check_queue(self, change: Change, queue: int, new: JobRow) -> None:
        held = self._held_in[queue]
        for job_id, holder in held.items():
            if job_id != new.id:
                what = f"taken from queue {queue} while {holder} held job {job_id} of it"
                self._report_change("queue_overlap", change, what, holder)
        held[new.id] = change.app

    def _better(self, change: Change, old: JobRow, new: JobRow, line: _Line) -> _Job | None:
        """The best job of a line that should have been taken instead."""
        moment = min(new.locked_at or change.at, change.at)
        tasks = self._tasks_of[change.app]
        # Jobs in no queue may be taken in the order of time alone.
        bound = (old.priority, old.run_at, old.id if old.queue is not None else -1)

        def is_ready(place: Place) -> bool | None:
            job = self._jobs.get(place[2])
            if job is None or not _stands_at(job.row, place) or job.row.queue != old.queue:
                return None
            if job.row.task not in tasks or place[1] > moment or place[2] == old.id:
                return False
            return self._visible_at(job.since) < moment

        found = line.best_before(bound, is_ready)
        return None if found is None else self._jobs[found[2]]

    def _visible_at(self, changed_at: float) -> float:
        """When all could surely see a change: a commit may have to wait until a fault is over."""
        which = bisect_right(self._fault_starts, changed_at + self._run.slack) - 1
        over_at = self._fault_ends[which] if which >= 0 else 0.0
        return max(changed_at, over_at) + self._run.slack

    def _suspect(self, rule: str, change: Change, better: _Job | None) -> None:
        if better is None:
            return
        what = f"taken though job {better.row.id} was better"
        better.suspects = better.suspects or []
        better.suspects.append((change.at, self._violation(rule, change, what)))

    def _check_suspects(self) -> None:
        """What nobody has touched any more was not busy."""
        for job in self._jobs.values():
            for _, violation in job.suspects or ():
                self._say_priority(violation)
            job.suspects = None

    def _say_priority(self, violation: Violation) -> None:
        counts = violation.rule != "priority" or self._run.strict_priority
        self._add(violation, counts=counts)

    def _see_end(
        self, kind: Kind, job: _Job, change: Change, old: JobRow, new: JobRow | None
    ) -> None:
        holder = job.holder or self._owner(old.locked_by)
        self._last_end = change.at
        if kind is Kind.FOREIGN_END:
            self._report_change(
                "fence_breaks", change, f"changed though {old.locked_by} held it", holder
            )
            if new is not None and new.locked_by is not None:
                return
        if kind is Kind.COMPLETION:
            self._completed.add(old.id)
        if kind is Kind.RECOVERY:
            assert new is not None
            self._see_recovery(job, change, new, holder)
        else:
            job.ended_by = change.app
        if new is not None:
            if kind is not Kind.FOREIGN_END and not _attempts_fit(kind, old, new):
                self._drift(change, old, new, holder)
            if kind is not Kind.FAILURE:
                self._check_payload(change, old, new)
        if old.queue is not None:
            self._held_in[old.queue].pop(old.id, None)
        job.holder = None

    def _see_recovery(self, job: _Job, change: Change, new: JobRow, holder: str | None) -> None:
        if holder is not None:
            job.lost_by = (job.lost_by or set()) | {holder}
            self._note_recovery(job, holder, max(change.at, new.run_at))
        job.ended_by = None
        error = new.error or ""
        if error.startswith(RECOVERED) and not error.startswith(NOT_STARTED):
            job.recoveries += 1
            most = self._run.max_crashes
            if most is not None and job.recoveries > most:
                what = f"recovered {job.recoveries} times while it ran"
                self._report_change("attempts_drift", change, what, holder)
        if error.startswith(QUARANTINED):
            job.recoveries = 0

    def _note_recovery(self, job: _Job, holder: str, free_at: float) -> None:
        kills = self._kills.get(holder, ())
        which = bisect_right(kills, free_at) - 1
        # A claim that was on its way may have been committed a little after the death.
        if which >= 0 and kills[which] >= job.claimed_at - self._run.slack:
            self._recovery.append(free_at - kills[which])

    def _see_meddling(self, job: _Job, change: Change, old: JobRow, new: JobRow | None) -> None:
        """Somebody changes or deletes a job that nobody holds: who may?"""
        what = "deleted" if new is None else "changed"
        if new is not None:
            self._check_payload(change, old, new)
            job.recoveries = 0
        if not old.is_available and new is None:
            # Of no use to anybody any more.
            return
        if job.lost_by and change.app in job.lost_by:
            self._report_change("fence_breaks", change, f"{what} by who had lost it")
        elif change.app == job.ended_by:
            self._report_change("second_ends", change, f"{what} by who had ended it")
        elif new is None and old.key is None and change.app in self._tasks_of:
            self._report_change("lost", change, "deleted by a worker, without having been taken")

    def _see_replacement(self, job: _Job, change: Change, old: JobRow, new: JobRow) -> None:
        if old.key is None or new.key != old.key or new.revision != old.revision + 1:
            self._report_change(
                "key_breaks", change, f"from revision {old.revision} to {new.revision}"
            )
        if new.attempts != 0:
            self._drift(change, old, new)
        self._note_tokens(new)
        self._note_cron(change, new)
        job.recoveries = 0
        job.ended_by = None
        job.lost_by = None

    def _see_little(self, kind: Kind, job: _Job, change: Change, old: JobRow, new: JobRow) -> None:
        if kind is Kind.RENEWAL and change.app != self._owner(old.locked_by):
            self._report_change(
                "fence_breaks", change, "lock renewed by another process", job.holder
            )
        if kind is Kind.DETACHMENT:
            job.is_detached = True
        if kind is not Kind.DETACHMENT and new.attempts != old.attempts:
            self._drift(change, old, new, job.holder)
        self._check_payload(change, old, new)

    def _check_payload(self, change: Change, old: JobRow, new: JobRow) -> None:
        if new.payload != old.payload:
            self._report_change("key_breaks", change, f"payload {old.payload} became {new.payload}")

    def _drift(self, change: Change, old: JobRow, new: JobRow, *apps: str | None) -> None:
        what = f"from {old.attempts} to {new.attempts} of {new.max_attempts} attempts"
        self._report_change("attempts_drift", change, what, *apps)

    def _keep(self, job: _Job, new: JobRow, change: Change) -> None:
        old = job.row
        if old.key != new.key and old.key is not None and self._keys.get(old.key) == new.id:
            del self._keys[old.key]
        if new.key is not None and (change.old is None or old.key != new.key):
            other = self._keys.get(new.key)
            if other is not None and other != new.id:
                self._report_change("key_breaks", change, f"has the key {new.key!r} of job {other}")
            self._keys[new.key] = new.id
        job.row = new
        job.since = change.at
        if new.is_available:
            self._line_of(new).add(new)

    def _line_of(self, row: JobRow) -> _Line:
        return self._line if row.queue is None else self._lines[row.queue]

    def _forget(self, old: JobRow) -> None:
        self._gone.add(old.id)
        del self._jobs[old.id]
        if old.key is not None and self._keys.get(old.key) == old.id:
            del self._keys[old.key]
        if old.queue is not None:
            self._held_in[old.queue].pop(old.id, None)

    # Named queues and crontabs

    def _see_queue(self, change: Change, old: QueueRow | None, new: QueueRow | None) -> None:
        row = new or old
        assert row is not None
        known = self._queues.get(row.id)
        if known != old:
            self._report_change("gaps", change, f"queue was {known}, is said to have been {old}")
        if new is None:
            self._queues.pop(row.id, None)
            return
        self._queues[new.id] = new
        if old is None or old.locked_by is None or new.locked_by in (None, old.locked_by):
            return
        what = f"queue {new.name!r}, held by {old.locked_by}, was taken by {new.locked_by}"
        self._report_change("queue_overlap", change, what, self._owner(old.locked_by))

    def _see_crontab(self, change: Change, old: CrontabRow | None, new: CrontabRow | None) -> None:
        row = new or old
        assert row is not None
        if self._crontabs.get(row.identifier) != old:
            self._report_change("gaps", change, f"crontab {row.identifier!r} was changed unseen")
        if new is None:
            del self._crontabs[row.identifier]
            return
        self._crontabs[new.identifier] = new
        tick = new.last_execution
        if tick is None or change.op == "s" or (old and old.last_execution == tick):
            return
        self._ticks[new.identifier][tick] += 1
        self._noted[change.xid, tick] += 1
        if old and old.last_execution is not None and tick < old.last_execution:
            what = f"{new.identifier!r} went back from {old.last_execution:.0f} to {tick:.0f}"
            self._report_change("cron_double", change, what)

    def _note_cron(self, change: Change, new: JobRow) -> None:
        found = _CRON.search(new.payload) if '"_cron"' in new.payload else None
        if found:
            self._cron_jobs[change.xid, _seconds(found[1])] += 1

    def _check_cron(self) -> None:
        for (xid, tick), jobs in self._cron_jobs.items():
            surplus = jobs - self._noted[xid, tick]
            for _ in range(surplus):
                self._report_rule(
                    "cron_double", f"a job for {_shown(tick)} that no crontab has noted"
                )
        for (xid, tick), ticks in self._noted.items():
            for _ in range(ticks - self._cron_jobs[xid, tick]):
                self._report_rule("cron_missing", f"{_shown(tick)} was noted, and no job added")
        for identifier, minutes in (self._run.cron or {}).items():
            self._check_minutes(identifier, set(minutes))

    def _check_minutes(self, identifier: str, expected: set[float]) -> None:
        seen = self._ticks[identifier]
        for minute in sorted(expected - seen.keys()):
            self._report_rule("cron_missing", f"{identifier!r} did not run at {_shown(minute)}")
        for minute, count in sorted(seen.items()):
            if minute not in expected:
                self._report_rule("cron_double", f"{identifier!r} ran at {_shown(minute)}")
            elif count > 1:
                self._report_rule(
                    "cron_double", f"{identifier!r} ran {count} times at {_shown(minute)}"
                )

    # The end

    def _check_final(self) -> None:
        final = self._history.final
        if final is None:
            return
        jobs = {row.id: row for row in final.jobs}
        for job_id in sorted(jobs.keys() | self._jobs.keys()):
            job = self._jobs.get(job_id)
            if (job.row if job else None) != jobs.get(job_id):
                what = f"was {job and job.row} at last, the table says {jobs.get(job_id)}"
                self._report_rule("gaps", what, job_id)
        queues = {row.id: row for row in final.queues}
        for queue_id in sorted(queues.keys() | self._queues.keys()):
            if queues.get(queue_id) != self._queues.get(queue_id):
                self._report_rule("gaps", f"queue {queue_id} was changed unseen at last")

    def _check_adds(self) -> None:
        calls = _Calls(self._history.adds)
        missing_tail = recovered = 0
        for add in calls.ended("ok"):
            began = calls.began.get(add.call, add)
            for index, job_id in enumerate(add.job_ids):
                token = (add.tokens or began.tokens)[index : index + 1]
                problem = self._problem_of(add, job_id, token[0] if token else None)
                if problem is None:
                    self._check_tail(began, add, job_id)
                elif self._may_be_lost(add):
                    missing_tail += 1
                else:
                    self._report_rule(*problem, job_id)
        self._check_tokens(calls)
        for add in calls.ended("info"):
            recovered += any(
                token in self._tokens for token in calls.began.get(add.call, add).tokens
            )
        self._report.figures["adds acknowledged"] = len(calls.ended("ok"))
        self._report.figures["adds in doubt, done"] = recovered
        if self._run.durable_until is not None:
            self._report.figures["jobs lost with the tail"] = missing_tail

    def _problem_of(self, add: Add, job_id: int, token: str | None) -> tuple[str, str] | None:
        if job_id not in self._jobs and job_id not in self._gone:
            return "lost", f"never seen, though acknowledged ({add.call})"
        if token is None or job_id in self._tokens[token] or add.key_mode == "unsafe_dedupe":
            return None
        if add.key is not None:
            return "key_breaks", f"the payload {token} of {add.key!r} was never in it"
        return "lost", f"its payload {token} was never in it ({add.call})"

    def _may_be_lost(self, add: Add) -> bool:
        until = self._run.durable_until
        return until is not None and (add.position is None or add.position > until)

    def _check_tail(self, began: Add, add: Add, job_id: int) -> None:
        until, position = self._run.durable_until, began.position
        if until is not None and position is not None and began is not add and position >= until:
            self._report_rule(
                "unexpected", "is there, though it was added after the promotion", job_id
            )

    def _check_tokens(self, calls: "_Calls") -> None:
        if not self._history.adds:
            return
        known = {token: add for add in calls.all for token in add.tokens}
        failed = {token for add in calls.ended("fail") for token in calls.tokens(add)}
        for token, job_ids in self._tokens.items():
            if not job_ids:
                continue
            if token not in known or token in failed:
                why = "has failed" if token in failed else "was never tried"
                self._report_rule(
                    "unexpected", f"{token} is there, though its adding {why}", min(job_ids)
                )
            elif len(job_ids) > 1 and known[token].key is None:
                self._report_rule("duplicated", f"{token} is in {len(job_ids)} jobs", min(job_ids))

    def _check_locks(self) -> None:
        for job in self._jobs.values():
            owner = self._owner(job.row.locked_by)
            if owner is not None and owner not in self._run.alive:
                what = f"is still locked by {job.row.locked_by}"
                self._add(Violation("orphan_locks", what, job.row.id, None, (owner,)))
        for queue in self._queues.values():
            owner = self._owner(queue.locked_by)
            if owner is None or (owner in self._run.alive and self._held_in.get(queue.id)):
                continue
            what = f"queue {queue.name!r} is still locked by {queue.locked_by}"
            self._add(Violation("orphan_locks", what, None, None, (owner,)))

    def _check_effects(self) -> None:
        tasks = {id for id, name in self._history.tasks.items() if name in self._run.transactional}
        if not tasks:
            return
        counts = Counter(effect.job_id for effect in self._history.effects)
        theirs = {
            change.new.id
            for change in self._history.changes
            if change.old is None and isinstance(change.new, JobRow) and change.new.task in tasks
        }
        for job_id in sorted(theirs):
            wanted = int(job_id in self._completed)
            if counts[job_id] != wanted:
                self._report_rule("effects", f"has {counts[job_id]} effects, not {wanted}", job_id)
        self._report.figures["effects"] = sum(counts[job_id] for job_id in theirs)

    def _check_ends(self) -> None:
        end = self._history.changes[-1].at if self._history.changes else 0.0
        waiting = [job.row for job in self._jobs.values() if job.row.is_available]
        for row in waiting:
            if row.run_at <= end:
                violation = Violation("unfinished", f"could run since {row.run_at:.3f}", row.id)
                self._add(violation, counts=self._run.must_finish)
        for process in self._run.exits:
            self._add(Violation("exits", "ended by itself", None, None, (process,)))

    def _check_bodies(self) -> None:
        overlaps = list(_overlaps(self._history.bodies, self._kills))
        self._report.figures["bodies that overlapped"] = len(overlaps)
        if overlaps:
            self._report.figures["bodies that overlapped, jobs"] = overlaps[:EXAMPLES]

    def _measure(self) -> None:
        figures = self._report.figures
        figures["jobs"] = len(self._jobs) + len(self._gone)
        figures["jobs completed"] = len(self._completed)
        figures["seconds to recovery (p50, p99, max)"] = _percentiles(self._recovery)
        figures["jobs recovered after a kill"] = len(self._recovery)
        back = [fault.until for fault in self._history.faults if _stops_server(fault)]
        waits = [self._claims[index] - at for at, index in self._next_claims(back)]
        if waits:
            figures["seconds to a claim after the server's return"] = _percentiles(waits)
        if self._run.healed_at is not None and self._last_end is not None:
            seconds = round(self._last_end - self._run.healed_at, 3)
            figures["seconds from the last fault to the last end"] = seconds

    def _next_claims(self, moments: Iterable[float | None]) -> list[tuple[float, int]]:
        found = [(at, bisect_left(self._claims, at)) for at in moments if at is not None]
        return [(at, index) for at, index in found if index < len(self._claims)]

    # Saying so

    def _report_change(self, rule: str, change: Change, what: str, *apps: str | None) -> None:
        self._add(self._violation(rule, change, what, *apps))

    def _violation(self, rule: str, change: Change, what: str, *apps: str | None) -> Violation:
        row = change.new or change.old
        job_id = row.id if isinstance(row, JobRow) else None
        about = tuple(dict.fromkeys(app for app in (change.app, *apps) if app is not None))
        return Violation(rule, what, job_id, change.seq, about)

    def _report_rule(self, rule: str, what: str, job_id: int | None = None) -> None:
        self._add(Violation(rule, what, job_id))

    def _add(self, violation: Violation, *, counts: bool = True) -> None:
        held_by = self._run.held_by
        if held_by is not None and violation.rule in _OF_HOLDERS:
            counts = counts and any(held_by(app) for app in violation.apps)
        self._report.add(violation, counts=counts)


class _Calls:
    """What enqueuers have asked for, and what they heard."""

    def __init__(self, adds: Sequence[Add]) -> None:
        self.all = adds
        self.began = {add.call: add for add in adds if add.step == "invoke"}
        self._ends: dict[str, list[Add]] = defaultdict(list)
        for add in adds:
            self._ends[add.step].append(add)

    def ended(self, step: str) -> list[Add]:
        return self._ends[step]

    def tokens(self, add: Add) -> tuple[str, ...]:
        return add.tokens or self.began.get(add.call, add).tokens


_TOKEN = re.compile(r'"token"\s*:\s*"([^"]+)"')
_CRON = re.compile(
    r'"_cron"\s*:\s*\{[^}]*"ts"\s*:\s*"(\d{4}-[01]\d-[0-3]\dT[0-2]\d:[0-5]\d:00(?:\.000)?Z)"'
)


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _shown(seconds: float) -> str:
    return f"{seconds:.0f}"


def _stands_at(row: JobRow, place: Place) -> bool:
    return row.is_available and row.priority == place[0] and row.run_at == place[1]


def _attempts_fit(kind: Kind, old: JobRow, new: JobRow) -> bool:
    """Whether the attempts after an end are those that this kind of end leaves."""
    spent, most = old.attempts, old.max_attempts
    if new.max_attempts != most:
        return False
    if kind is Kind.RECOVERY:
        # Its last attempt is never the last because of that; quarantined, it has none.
        return new.attempts in (spent, max(0, spent - 1), min(spent, most - 1), most)
    if kind is Kind.REFUND:
        return True
    return new.attempts in (spent, most)


def _kills(faults: Iterable[Fault]) -> dict[str, list[float]]:
    """When each process was killed."""
    found: dict[str, list[float]] = defaultdict(list)
    for fault in sorted(faults, key=lambda fault: fault.at):
        if fault.kind == "SIGKILL" and fault.process is not None:
            found[fault.process].append(fault.at)
    return found


def _windows(faults: Iterable[Fault]) -> tuple[list[float], list[float]]:
    """When faults of the server began, and until when all that had begun by then were over."""
    found = sorted((fault.at, fault.until or fault.at) for fault in faults if _stops_server(fault))
    starts: list[float] = []
    ends: list[float] = []
    for start, end in found:
        starts.append(start)
        ends.append(max(end, ends[-1] if ends else end))
    return starts, ends


def _stops_server(fault: Fault) -> bool:
    return fault.process is None and fault.until is not None


def _overlaps(bodies: Iterable[Body], kills: Mapping[str, Sequence[float]]) -> Iterable[int]:
    """The jobs that two pools ran at the same time; once for each time."""
    runs: dict[tuple[int, str, int], list[float]] = {}
    for body in bodies:
        name = (body.job_id, body.pool, body.attempt)
        if body.step == "start":
            runs[name] = [body.at, _death(kills.get(body.process, ()), body.at)]
        elif name in runs:
            runs[name][1] = body.at
    of_job: dict[int, list[tuple[float, float, str]]] = defaultdict(list)
    for (job_id, pool, _), (start, end) in runs.items():
        of_job[job_id].append((start, end, pool))
    for job_id, times in of_job.items():
        times.sort()
        for (_, end, pool), (start, _, other) in zip(times, times[1:], strict=False):
            if start < end and pool != other:
                yield job_id


def _death(kills: Sequence[float], start: float) -> float:
    """When a body has ended that did not say so: with its process, or nobody knows."""
    which = bisect_left(kills, start)
    return kills[which] if which < len(kills) else start


def _percentiles(values: Iterable[float]) -> list[float]:
    """The 50th and the 99th, and the greatest, to a millisecond."""
    found = sorted(values)
    if not found:
        return []
    picked = (found[len(found) // 2], found[min(len(found) - 1, len(found) * 99 // 100)], found[-1])
    return [round(value, 3) for value in picked]
