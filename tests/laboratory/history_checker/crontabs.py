"""Check I6: each minute of a crontab adds one job."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime

from tests.laboratory.history_checker.findings import Findings
from tests.laboratory.history_checker.history import Change, CrontabRow, JobRow

_CRON = re.compile(
    r'"_cron"\s*:\s*\{[^}]*"ts"\s*:\s*"(\d{4}-[01]\d-[0-3]\dT[0-2]\d:[0-5]\d:00(?:\.000)?Z)"'
)


class CrontabRules:
    """Counts the minutes that crontabs record, and the jobs that are added for them."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._rows: dict[str, CrontabRow] = {}
        self._ticks: dict[str, Counter[float]] = defaultdict(Counter)
        # Per transaction and minute.
        self._recorded: Counter[tuple[int, float]] = Counter()
        self._jobs: Counter[tuple[int, float]] = Counter()

    def see_row(self, change: Change, old: CrontabRow | None, new: CrontabRow | None) -> None:
        row = new or old
        assert row is not None
        if self._rows.get(row.identifier) != old:
            self._findings.add_change(
                "gaps", change, f"crontab {row.identifier!r} has a change that was not recorded"
            )
        if new is None:
            del self._rows[row.identifier]
            return
        self._rows[new.identifier] = new
        tick = new.last_execution
        if tick is None or change.op == "s" or (old and old.last_execution == tick):
            return
        self._ticks[new.identifier][tick] += 1
        self._recorded[change.xid, tick] += 1
        if old and old.last_execution is not None and tick < old.last_execution:
            what = f"{new.identifier!r} went back from {old.last_execution:.0f} to {tick:.0f}"
            self._findings.add_change("cron_double", change, what)

    def see_job(self, change: Change, new: JobRow) -> None:
        found = _CRON.search(new.payload) if '"_cron"' in new.payload else None
        if found:
            tick = datetime.fromisoformat(found[1]).timestamp()
            self._jobs[change.xid, tick] += 1

    def check(self, expected: Mapping[str, Iterable[float]]) -> None:
        for (xid, tick), jobs in self._jobs.items():
            for _ in range(jobs - self._recorded[xid, tick]):
                what = f"a job for {tick:.0f} that no crontab has recorded"
                self._findings.add_rule("cron_double", what)
        for (xid, tick), ticks in self._recorded.items():
            for _ in range(ticks - self._jobs[xid, tick]):
                self._findings.add_rule("cron_missing", f"{tick:.0f} was recorded without a job")
        for identifier, minutes in expected.items():
            self._check_minutes(identifier, set(minutes))

    def _check_minutes(self, identifier: str, expected: set[float]) -> None:
        seen = self._ticks[identifier]
        for minute in sorted(expected - seen.keys()):
            self._findings.add_rule("cron_missing", f"{identifier!r} did not run at {minute:.0f}")
        for minute, count in sorted(seen.items()):
            if minute not in expected:
                self._findings.add_rule("cron_double", f"{identifier!r} ran at {minute:.0f}")
            elif count > 1:
                what = f"{identifier!r} ran {count} times at {minute:.0f}"
                self._findings.add_rule("cron_double", what)
