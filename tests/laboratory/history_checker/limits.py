"""Check how many jobs of limited tasks ran at the same time, and that no slot stayed rented."""

from collections import defaultdict
from collections.abc import Iterable

from tests.laboratory.history_checker.expectations import Expectations
from tests.laboratory.history_checker.fault_times import FaultTimes
from tests.laboratory.history_checker.history import History, JobRow
from tests.laboratory.history_checker.report import Report, Violation

# A body of a pool, and the times between which it ran while its pool held the job.
Run = tuple[float, float, int, str]


class LimitRules:
    """The rules about limits of tasks."""

    def __init__(
        self, history: History, expectations: Expectations, report: Report, faults: FaultTimes
    ) -> None:
        self._history = history
        self._expectations = expectations
        self._report = report
        self._faults = faults

    def check(self) -> None:
        for slot in self._expectations.rented_slots:
            self._report.add(Violation("orphan_slots", f"slot {slot} is still rented"))
        for names, limit in self._expectations.concurrency_limits:
            tasks = {id for id, name in self._history.tasks.items() if name in names}
            self._check_limit(", ".join(sorted(names)), limit, list(self._find_runs(tasks)))

    def _check_limit(self, names: str, limit: int, runs: list[Run]) -> None:
        # An end comes before a start at the same time.
        steps = sorted(
            [(start, 1, job, process) for start, _, job, process in runs]
            + [(end, -1, job, process) for _, end, job, process in runs]
        )
        running: dict[tuple[int, str], int] = defaultdict(int)
        peak = 0
        for at, step, job_id, process in steps:
            running[job_id, process] += step
            count = sum(running.values())
            peak = max(peak, count)
            if step > 0 and count > limit:
                what = f"is one of {count} jobs of {names} at {at:.3f}, of at most {limit}"
                apps = tuple(name for (_, name), some in running.items() if some)
                self._report.add(Violation("limit_exceeded", what, job_id, None, apps))
            if not running[job_id, process]:
                del running[job_id, process]
        figures = self._report.figures
        figures[f"at the same time, of {limit} ({names})"] = peak
        figures[f"runs ({names})"] = len(runs)

    def _find_runs(self, tasks: set[int]) -> Iterable[Run]:
        """Yield the runs of these tasks. A run counts until its pool loses the job."""
        losses: dict[tuple[int, str], list[float]] = defaultdict(list)
        job_ids = set()
        for change in self._history.changes:
            old, new = change.old, change.new
            if isinstance(new, JobRow) and new.task in tasks:
                job_ids.add(new.id)
            if isinstance(old, JobRow) and old.task in tasks and old.locked_by is not None:
                holder = new.locked_by if isinstance(new, JobRow) else None
                if holder != old.locked_by:
                    losses[old.id, old.locked_by].append(change.at)
        starts: dict[tuple[int, str, int], tuple[float, str]] = {}
        for body in self._history.bodies:
            if body.job_id not in job_ids:
                continue
            key = (body.job_id, body.pool, body.attempt)
            if body.step == "start":
                starts[key] = (body.at, body.process)
            elif key in starts:
                yield self._cut(*starts.pop(key), body.at, key, losses)
        for key, (start, process) in starts.items():
            # A body without a recorded end ended with its process.
            yield self._cut(start, process, self._faults.killed_after(process, start), key, losses)

    def _cut(
        self,
        start: float,
        process: str,
        end: float,
        key: tuple[int, str, int],
        losses: dict[tuple[int, str], list[float]],
    ) -> Run:
        job_id, pool, _ = key
        lost = [at for at in losses[job_id, pool] if at >= start]
        return start, max(start, min([end, *lost])), job_id, process
