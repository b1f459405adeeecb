"""Collect violations while a history is checked."""

from tests.laboratory.history_checker.expectations import Expectations
from tests.laboratory.history_checker.history import Change, JobRow
from tests.laboratory.history_checker.report import Report, Violation

# The rules that `Expectations.counts_process` restricts.
_ABOUT_HOLDERS = {
    "double_held",
    "fence_breaks",
    "queue_overlap",
    "queue_order",
    "attempts_drift",
    "orphan_locks",
    "second_ends",
    "exits",
}


def violation_of(rule: str, change: Change, what: str, *processes: str | None) -> Violation:
    """Return a violation of the process that made a change, and of these others."""
    row = change.new or change.old
    job_id = row.id if isinstance(row, JobRow) else None
    names = tuple(dict.fromkeys(name for name in (change.app, *processes) if name is not None))
    return Violation(rule, what, job_id, change.seq, names)


class Findings:
    """Adds violations to a report; decides which of them count."""

    def __init__(self, report: Report, expectations: Expectations) -> None:
        self._report = report
        self._counts_process = expectations.counts_process

    def add_change(self, rule: str, change: Change, what: str, *processes: str | None) -> None:
        self.add(violation_of(rule, change, what, *processes))

    def add_rule(self, rule: str, what: str, job_id: int | None = None) -> None:
        self.add(Violation(rule, what, job_id))

    def add(self, violation: Violation, *, counts: bool = True) -> None:
        if self._counts_process is not None and violation.rule in _ABOUT_HOLDERS:
            counts = counts and any(map(self._counts_process, violation.apps))
        self._report.add(violation, counts=counts)
