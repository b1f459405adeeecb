"""Draw charts of long runs: `python -m tests.laboratory.plots`.

The charts of docs/about/reliability.md show the reports in tests/laboratory/results.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.chart import Bar, chart
from tests.laboratory.versions import ROOT

RESULTS = ROOT / "tests" / "laboratory" / "results"
CHARTS = ROOT / "docs" / "images"

RECOVERY = "seconds to recovery (p50, p99, max)"
RETURN = "seconds to a claim after the server's return"

# The kinds of faults, in the words of the page.
FAULTS = {
    "sigkill": "a worker is killed",
    "backend": "the server ends a session",
    "cut": "an answer to a worker is lost",
    "partition": "a network partition",
    "zombie": "a worker is frozen, then resumes",
    "crash": "the server crashes",
    "cut_enqueuer": "an answer to an enqueuer is lost",
    "term": "a worker is replaced",
    "half_open": "the server's end of a connection is gone",
    "reset": "connections are reset",
    "upgrade": "a worker is replaced by a newer version",
    "promotion": "a standby is promoted",
}

Run = dict[str, Any]


def main() -> None:
    for name, text in charts(read_runs(RESULTS)).items():
        (CHARTS / name).write_text(text, encoding="utf-8")


def read_runs(folder: Path) -> dict[str, Run]:
    """Return the reports by file name, the largest runs first."""
    found = {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")
    }
    return dict(sorted(found.items(), key=lambda each: (-each[1]["acknowledged"] // 1000, each[0])))


def charts(runs: dict[str, Run]) -> dict[str, str]:
    """Return the text of each chart by file name."""
    return {
        "reliability-faults.svg": _faults_chart(runs),
        "reliability-recovery.svg": _times_chart(
            "Recovery time after the kill of a worker", runs, RECOVERY
        ),
        "reliability-return.svg": _times_chart(
            "Time to a claim after the server returns", runs, RETURN
        ),
    }


def faults(runs: dict[str, Run]) -> Counter[str]:
    """Count the faults of each kind in all runs."""
    counts: Counter[str] = Counter()
    for run in runs.values():
        counts.update(run["faults"])
    return counts


def _faults_chart(runs: dict[str, Run]) -> str:
    counts = faults(runs)
    bars = [Bar(FAULTS[kind], count, f"{count:,}", "ours") for kind, count in counts.most_common()]
    jobs = sum(run["acknowledged"] for run in runs.values())
    about = f"{counts.total():,} in {len(runs)} runs of {jobs:,} jobs"
    return chart("Faults injected, by kind", about, bars, unit="faults")


def _times_chart(title: str, runs: dict[str, Run], figure: str) -> str:
    """Bars of p50, p99 and max for each run that has this figure."""
    bars = []
    for name, run in runs.items():
        times = run["report"]["figures"].get(figure, [])
        for key, seconds in zip(("p50", "p99", "max"), times, strict=False):
            label = _label(name, run) if key == "p50" else ""
            bars.append(Bar(label, seconds, f"{key} {seconds:.1f} s", "ours"))
    threshold = {run["threshold"] for run in runs.values()}
    about = f"lease duration of {', '.join(f'{each:g}' for each in threshold)} s"
    return chart(title, about, bars, unit="seconds")


def _label(name: str, run: Run) -> str:
    """Name a run with its size, as runs are not equally long."""
    return f"{name}: {run['acknowledged']:,} jobs in {run['seconds'] / 60:.0f} min"


if __name__ == "__main__":
    main()
