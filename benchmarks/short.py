"""A short version of throughput, latency and the matrix, for every check of a change.

Small and noisy: only ratios of one run are looked at, against those that were written down with
`python -m benchmarks short --out benchmarks/results/short.json`.
"""

import json
from collections.abc import Iterator
from typing import Any

from benchmarks.contenders.engine import Engine
from benchmarks.contenders.node import Node
from benchmarks.contenders.ours import Ours
from benchmarks.latency import latency
from benchmarks.matrix import matrix
from benchmarks.processes import ROOT
from benchmarks.server import Server
from benchmarks.throughput import throughput

RECORDED = ROOT / "benchmarks" / "results" / "short.json"

# Half the rate, or twice the time: a clear regression, whatever the machine does besides. And where
# a fetch takes a millisecond, a hiccup is a ratio of its own.
WORSE = 0.5
SLACK = 1.5


def short(server: Server) -> dict[str, Any]:
    return {
        "throughput": throughput(server, [Ours(), Node(), Engine(1)], jobs=10_000, rounds=5),
        "latency": latency(server, [Ours(), Node()], samples=200, rounds=3),
        "matrix": matrix(server, sizes=(1, 100), fetches=9, scale=0.05),
    }


def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return found


def regressions(now: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """What is clearly worse than it was, one line each."""
    return [*_slower(now, before), *_later(now, before), *_steeper(now, before)]


def _slower(now: dict[str, Any], before: dict[str, Any]) -> Iterator[str]:
    for name, ratio in before["throughput"]["ratios"].items():
        found, was = now["throughput"]["ratios"][name]["median"], ratio["median"]
        if found < was * WORSE:
            yield f"throughput against {name}: {found} of its rate, it was {was}"


def _later(now: dict[str, Any], before: dict[str, Any]) -> Iterator[str]:
    for name, ratio in before["latency"]["ratios"].items():
        found, was = now["latency"]["ratios"][name]["median"], ratio["median"]
        if found > was / WORSE:
            yield f"latency against {name}: {found} of its time, it was {was}"


def _steeper(now: dict[str, Any], before: dict[str, Any]) -> Iterator[str]:
    was_of = {table["name"]: table["cells"] for table in before["matrix"]["tables"]}
    for table in now["matrix"]["tables"]:
        for size, cell in table["cells"].items():
            was = was_of.get(table["name"], {}).get(size)
            if was is not None and cell["ratio"] > was["ratio"] / WORSE + SLACK:
                ratios = f"{cell['ratio']} of the clean table's time, it was {was['ratio']}"
                yield f"{size} of {table['label']}: {ratios}"
