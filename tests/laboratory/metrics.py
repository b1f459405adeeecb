"""Compare the counters of the workers with the history of a run.

Each worker writes its counters to a file whenever a job has ended, so that they survive a kill.
"""

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from graphile_worker import App
from graphile_worker.events import JobFinished, JobInterrupted, JobLockLost
from tests.laboratory.history_checker.changes import RECOVERED
from tests.laboratory.history_checker.history import Change, History, JobRow

SUFFIX = ".counters"

# A killed process did not count the writes whose answers it did not receive: at most one batch of
# each kind, or one write of each of its ten slots.
MAX_UNANSWERED_WRITES = 12


def write_counters(app: App, journal: Path) -> None:
    """Let a worker write its counters. A version without metrics does nothing."""
    if not hasattr(app.hooks, "_enable_metrics"):
        return
    from graphile_worker._metrics.definitions import JOBS_FINISHED, JobResult
    from graphile_worker._metrics.values import HistogramValue

    recorder = app.hooks._enable_metrics()
    file = os.open(journal.with_suffix(SUFFIX), os.O_CREAT | os.O_WRONLY)

    def write(event: object) -> None:
        counts: dict[str, float] = dict.fromkeys(JobResult, 0)
        for (_, outcome), value in recorder.collect()[JOBS_FINISHED].items():
            assert not isinstance(value, HistogramValue)
            counts[outcome] += value
        text = json.dumps({"at": time.time(), **counts})
        # One write of one length, so that a kill cannot leave a half.
        os.pwrite(file, text.ljust(400).encode(), 0)

    for event in (JobFinished, JobInterrupted, JobLockLost):
        app.on(event)(write)


@dataclass(frozen=True, slots=True)
class MetricsReport:
    """The counters of all workers beside the history."""

    counted: dict[str, int]
    recorded: dict[str, int]
    """The completions, failures and releases of the history."""
    unanswered: int
    """Writes that a killed process did not count."""
    differences: list[str]

    def __str__(self) -> str:
        return (
            f"counted {self.counted['success']} successes, {self.counted['failures']} failures, "
            f"{self.counted['lost']} lost; history {self.recorded['completion']} completions, "
            f"{self.recorded['failure']} failures; {self.unanswered} writes of killed processes "
            "without an answer"
        )


def compare_counters(history: History, folder: Path, killed: Iterable[str]) -> MetricsReport:
    """Compare the counters of each process with its changes in the history.

    Args:
        history: History of the run.
        folder: Folder of the run, with the files of the workers.
        killed: Names of the processes that did not end by themselves.
    """
    changes = _group_changes(history)
    gone = set(killed)
    total: Counter[str] = Counter()
    recorded: Counter[str] = Counter()
    unanswered = 0
    differences = []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        name = path.stem
        own = _drop_unstarted(changes.get(name, {}), _count_starts(history, name))
        counts = json.loads(path.read_text() or "{}")
        found = {
            "completion": int(counts.get("success", 0)),
            "failure": int(counts.get("retry", 0) + counts.get("failed", 0)),
        }
        lost = int(counts.get("lost", 0))
        total.update(success=found["completion"], failures=found["failure"], lost=lost)
        released = len(own.get("release", []))
        recorded["release"] += released
        # A release that deleted its job, or left its attempts, is in the history as another kind.
        unusual_releases = max(0, _count_releases(counts) - released)
        if unusual_releases > _count_possible_releases(own):
            differences.append(f"{name}: {released} released, counted {counts}")
        # A write that succeeded after its answer and the lease were lost counts as lost.
        allowed_lost = lost + unusual_releases
        for kind, count in found.items():
            expected = own.get(kind, [])
            recorded[kind] += len(expected)
            missing = len(expected) - count
            tolerated = allowed_lost
            if name in gone:
                tolerated += _count_last_writes(expected)
                unanswered += max(0, missing - allowed_lost)
            if not 0 <= missing <= tolerated:
                differences.append(
                    f"{name}: {len(expected)} of kind {kind}, counted {count}, lost {lost}"
                )
    return MetricsReport(dict(total), dict(recorded), unanswered, differences)


def _group_changes(history: History) -> dict[str, dict[str, list[Change]]]:
    """Return the ends of claims by process and kind."""
    found: dict[str, dict[str, list[Change]]] = defaultdict(lambda: defaultdict(list))
    for change in history.changes:
        old, new = change.old, change.new
        if not isinstance(old, JobRow) or old.locked_by is None:
            continue
        if new is None:
            found[change.app]["completion"].append(change)
        elif isinstance(new, JobRow) and new.locked_by is None:
            if new.error != old.error and (new.error or "").startswith(RECOVERED):
                continue
            kind = "release" if new.attempts == old.attempts - 1 else "failure"
            found[change.app][kind].append(change)
    return found


def _count_starts(history: History, process: str) -> Counter[int]:
    """Count how often a process started each job."""
    return Counter(
        body.job_id for body in history.bodies if (body.step, body.process) == ("start", process)
    )


def _drop_unstarted(
    changes: Mapping[str, list[Change]], starts: Mapping[int, int]
) -> dict[str, list[Change]]:
    """Leave out jobs that were released before their start, which no counter counts.

    If such a job lost its key while it waited, its release deletes it like a completion.
    """
    ended = Counter(
        change.old.id
        for kind in ("completion", "failure")
        for change in changes.get(kind, ())
        if isinstance(change.old, JobRow)
    )
    return {
        kind: [
            change
            for change in of_kind
            if kind != "completion"
            or not isinstance(change.old, JobRow)
            or ended[change.old.id] <= starts.get(change.old.id, 0)
            or not _count_possible_releases({kind: [change]})
        ]
        for kind, of_kind in changes.items()
    }


def _count_releases(counts: Mapping[str, float]) -> int:
    return int(counts.get("interrupted", 0) + counts.get("snoozed", 0))


def _count_possible_releases(changes: Mapping[str, list[Change]]) -> int:
    """Count the changes that may be releases of jobs that were removed or failed meanwhile.

    The release of a job that lost its key while it was locked deletes it. The release of a job that
    failed permanently while it was locked leaves its attempts and its error.
    """
    count = 0
    for change in (*changes.get("completion", ()), *changes.get("failure", ())):
        old, new = change.old, change.new
        assert isinstance(old, JobRow)
        if old.attempts < old.max_attempts:
            continue
        if new is None:
            count += old.key is None
        else:
            assert isinstance(new, JobRow)
            count += (new.attempts, new.error) == (old.attempts, old.error)
    return count


def _count_last_writes(changes: list[Change]) -> int:
    transactions = sorted({change.xid for change in changes})[-MAX_UNANSWERED_WRITES:]
    return sum(change.xid in transactions for change in changes)
