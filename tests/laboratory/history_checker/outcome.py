"""Check what a run left behind: its tables, its enqueues, its locks and its effects."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from tests.laboratory.history_checker.expectations import Expectations
from tests.laboratory.history_checker.fault_times import FaultTimes
from tests.laboratory.history_checker.findings import Findings
from tests.laboratory.history_checker.history import Add, Body, History, JobRow
from tests.laboratory.history_checker.replay import Replay
from tests.laboratory.history_checker.report import MAX_EXAMPLES, Report, Violation


class OutcomeRules:
    """The rules about the end of a run."""

    def __init__(
        self,
        history: History,
        expectations: Expectations,
        report: Report,
        faults: FaultTimes,
        replay: Replay,
    ) -> None:
        self._history = history
        self._expectations = expectations
        self._report = report
        self._faults = faults
        self._replay = replay
        self._findings = Findings(report, expectations)

    def check(self) -> None:
        self._check_final_tables()
        self._check_adds()
        self._check_locks()
        self._check_effects()
        self._check_kept()
        self._check_unfinished()
        self._count_overlapping_bodies()
        self._measure()

    def _check_final_tables(self) -> None:
        final = self._history.final
        if final is None:
            return
        jobs = {row.id: row for row in final.jobs}
        for job_id in sorted(jobs.keys() | self._replay.jobs.keys()):
            job = self._replay.jobs.get(job_id)
            if (job.row if job else None) != jobs.get(job_id):
                what = f"was {job and job.row} at last, but the table has {jobs.get(job_id)}"
                self._findings.add_rule("gaps", what, job_id)
        queues = {row.id: row for row in final.queues}
        for queue_id in sorted(queues.keys() | self._replay.queues.keys()):
            if queues.get(queue_id) != self._replay.queues.get(queue_id):
                what = f"the last change of queue {queue_id} was not recorded"
                self._findings.add_rule("gaps", what)

    # Enqueues

    def _check_adds(self) -> None:
        calls = _Calls(self._history.adds)
        missing_tail = 0
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
                    self._findings.add_rule(*problem, job_id)
        self._check_tokens(calls)
        done = sum(
            any(token in self._replay.tokens for token in calls.began.get(add.call, add).tokens)
            for add in calls.ended("info")
        )
        self._report.figures["adds acknowledged"] = len(calls.ended("ok"))
        self._report.figures["adds in doubt, done"] = done
        if self._expectations.durable_until is not None:
            self._report.figures["jobs lost with the tail"] = missing_tail

    def _problem_of(self, add: Add, job_id: int, token: str | None) -> tuple[str, str] | None:
        if job_id not in self._replay.jobs and job_id not in self._replay.deleted:
            return "lost", f"never existed, though acknowledged ({add.call})"
        if token is None or job_id in self._replay.tokens[token]:
            return None
        if add.key_mode == "unsafe_dedupe":
            return None
        if add.key is not None:
            return "key_breaks", f"never had the payload {token} of {add.key!r}"
        return "lost", f"never had its payload {token} ({add.call})"

    def _may_be_lost(self, add: Add) -> bool:
        until = self._expectations.durable_until
        return until is not None and (add.position is None or add.position > until)

    def _check_tail(self, began: Add, add: Add, job_id: int) -> None:
        until, position = self._expectations.durable_until, began.position
        if until is not None and position is not None and began is not add and position >= until:
            what = "exists, though it was added after the promotion"
            self._findings.add_rule("unexpected", what, job_id)

    def _check_tokens(self, calls: "_Calls") -> None:
        if not self._history.adds:
            return
        known = {token: add for add in calls.all for token in add.tokens}
        failed = {token for add in calls.ended("fail") for token in calls.tokens(add)}
        for token, job_ids in self._replay.tokens.items():
            if not job_ids:
                continue
            if token not in known or token in failed:
                why = "failed" if token in failed else "was never called"
                what = f"{token} exists, though its enqueue {why}"
                self._findings.add_rule("unexpected", what, min(job_ids))
            elif len(job_ids) > 1 and known[token].key is None:
                what = f"{token} is in {len(job_ids)} jobs"
                self._findings.add_rule("duplicated", what, min(job_ids))

    # Locks, effects and jobs that are left

    def _check_locks(self) -> None:
        alive = self._expectations.alive
        for job in self._replay.jobs.values():
            owner = self._replay.process_of(job.row.locked_by)
            if owner is not None and owner not in alive:
                what = f"is still locked by {job.row.locked_by}"
                self._findings.add(Violation("orphan_locks", what, job.row.id, None, (owner,)))
        for queue in self._replay.queues.values():
            owner = self._replay.process_of(queue.locked_by)
            if owner is None or (owner in alive and self._replay.claimed_in.get(queue.id)):
                continue
            what = f"queue {queue.name!r} is still locked by {queue.locked_by}"
            self._findings.add(Violation("orphan_locks", what, None, None, (owner,)))

    def _check_effects(self) -> None:
        names = self._expectations.transactional_tasks
        tasks = {id for id, name in self._history.tasks.items() if name in names}
        if not tasks:
            return
        counts = Counter(effect.job_id for effect in self._history.effects)
        job_ids = {
            change.new.id
            for change in self._history.changes
            if change.old is None and isinstance(change.new, JobRow) and change.new.task in tasks
        }
        for job_id in sorted(job_ids):
            wanted = int(job_id in self._replay.completed)
            if counts[job_id] != wanted:
                what = f"has {counts[job_id]} effects, not {wanted}"
                self._findings.add_rule("effects", what, job_id)
        self._report.figures["effects"] = sum(counts[job_id] for job_id in job_ids)

    def _check_kept(self) -> None:
        """Check that each end has one outcome and one attempt, of the run that held the job."""
        names = self._expectations.keeping_tasks
        tasks = {id: name for id, name in self._history.tasks.items() if name in names}
        if not tasks:
            return
        stored = Counter((each.job_id, each.pool, each.attempt) for each in self._history.attempts)
        ends = [
            end
            for end in self._replay.ends
            if end.task in tasks
            # A release keeps nothing.
            and not (end.may_be_release and not stored[end.job_id, end.pool, end.attempt])
        ]
        job_ids = {end.job_id for end in ends}
        attempts = Counter((end.job_id, end.pool, end.attempt) for end in ends)
        for key in sorted((attempts - stored) + (stored - attempts)):
            what = f"has {stored[key]} stored attempts {key[1:]}, not {attempts[key]}"
            self._findings.add_rule("outcomes", what, key[0])
        wanted = Counter(
            (end.job_id, tasks[end.task], end.pool, end.attempt, end.succeeded)
            for end in ends
            if end.is_last
        )
        found = Counter(
            (each.job_id, each.task, each.pool, each.attempt, each.succeeded)
            for each in self._history.outcomes
        )
        for which in sorted((wanted - found) + (found - wanted)):
            what = f"has {found[which]} outcomes {which[1:]}, not {wanted[which]}"
            self._findings.add_rule("outcomes", what, which[0])
        self._check_results()
        figures = self._report.figures
        figures["outcomes (succeeded, failed)"] = [
            sum(each.succeeded is is_success for each in self._history.outcomes)
            for is_success in (True, False)
        ]
        figures["outcomes, jobs"] = len({each.job_id for each in self._history.outcomes} & job_ids)
        figures["attempts kept"] = len(self._history.attempts)

    def _check_results(self) -> None:
        results: dict[tuple[int, str, int], str] = {}
        for body in self._history.bodies:
            if body.step == "start" and body.result is not None:
                # A run that was released starts again at the same attempt.
                results[body.job_id, body.pool, body.attempt] = body.result
        for outcome in self._history.outcomes:
            key = (outcome.job_id, outcome.pool, outcome.attempt)
            expected = results.get(key) if outcome.succeeded else None
            if outcome.result != expected:
                what = f"has the result {outcome.result}, but its run returned {expected}"
                self._findings.add_rule("outcomes", what, outcome.job_id)

    def _check_unfinished(self) -> None:
        end = self._history.changes[-1].at if self._history.changes else 0.0
        for job in self._replay.jobs.values():
            row = job.row
            if row.is_available and row.run_at <= end:
                violation = Violation("unfinished", f"could run since {row.run_at:.3f}", row.id)
                self._findings.add(violation, counts=self._expectations.must_finish)
        for process in self._expectations.exits:
            self._findings.add(Violation("exits", "ended by itself", None, None, (process,)))

    # Figures

    def _count_overlapping_bodies(self) -> None:
        overlaps = list(_overlaps(self._history.bodies, self._faults))
        self._report.figures["bodies that overlapped"] = len(overlaps)
        if overlaps:
            self._report.figures["bodies that overlapped, jobs"] = overlaps[:MAX_EXAMPLES]

    def _measure(self) -> None:
        figures, replay = self._report.figures, self._replay
        figures["jobs"] = len(replay.jobs) + len(replay.deleted)
        figures["jobs completed"] = len(replay.completed)
        figures["seconds to recovery (p50, p99, max)"] = _percentiles(replay.recovery_seconds)
        figures["jobs recovered after a kill"] = len(replay.recovery_seconds)
        if waits := list(self._waits_for_claims()):
            figures["seconds to a claim after the server's return"] = _percentiles(waits)
        if self._expectations.healed_at is not None and replay.last_end is not None:
            seconds = round(replay.last_end - self._expectations.healed_at, 3)
            figures["seconds from the last fault to the last end"] = seconds

    def _waits_for_claims(self) -> Iterable[float]:
        claims = self._replay.claim_times
        for at in self._faults.server_returns:
            if (index := bisect_left(claims, at)) < len(claims):
                yield claims[index] - at


class _Calls:
    """What enqueuers called, and what they know of the outcome."""

    def __init__(self, adds: Sequence[Add]) -> None:
        self.all = adds
        self.began = {add.call: add for add in adds if add.step == "invoke"}
        self._by_step: dict[str, list[Add]] = defaultdict(list)
        for add in adds:
            self._by_step[add.step].append(add)

    def ended(self, step: str) -> list[Add]:
        return self._by_step[step]

    def tokens(self, add: Add) -> tuple[str, ...]:
        return add.tokens or self.began.get(add.call, add).tokens


def _overlaps(bodies: Iterable[Body], faults: FaultTimes) -> Iterable[int]:
    """Yield each job that two pools ran at the same time, once for each time."""
    runs: dict[tuple[int, str, int], list[float]] = {}
    for body in bodies:
        name = (body.job_id, body.pool, body.attempt)
        if body.step == "start":
            # A body without a recorded end ended with its process.
            runs[name] = [body.at, faults.killed_after(body.process, body.at)]
        elif name in runs:
            runs[name][1] = body.at
    runs_of_job: dict[int, list[tuple[float, float, str]]] = defaultdict(list)
    for (job_id, pool, _), (start, end) in runs.items():
        runs_of_job[job_id].append((start, end, pool))
    for job_id, times in runs_of_job.items():
        times.sort()
        for (_, end, pool), (start, _, other) in zip(times, times[1:], strict=False):
            if start < end and pool != other:
                yield job_id


def _percentiles(values: Iterable[float]) -> list[float]:
    """Return the 50th and the 99th percentile and the maximum, to a millisecond."""
    found = sorted(values)
    if not found:
        return []
    picked = (found[len(found) // 2], found[min(len(found) - 1, len(found) * 99 // 100)], found[-1])
    return [round(value, 3) for value in picked]
