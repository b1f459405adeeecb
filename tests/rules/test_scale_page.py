"""The figures of the pages about scaling and tuning are those of the runs and the options."""

import json
import re
from typing import Any

import pytest

from graphile_worker import WorkerOptions
from graphile_worker._db.worker_connections import ENQUEUE_CONNECTIONS, SYNC_ENQUEUE_CONNECTIONS
from tests.support.pages import ROOT

CONNECTIONS = re.compile(
    r"up to \[?\d+ connections\]?|at least \d+ per worker process|4 × \d+ = \d+"
)
PAGES = ("performance-tuning.md", "scaling.md")
PAGE = " ".join(
    word
    for name in PAGES
    for word in (ROOT / "docs/operations" / name).read_text(encoding="utf-8").split()
)


def result(name: str) -> dict[str, Any]:
    path = ROOT / "benchmarks" / "results" / f"{name}-pg18.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def median(name: str, contender: str, figure: str = "jobs_per_second") -> float:
    found: float = result(name)["contenders"][contender][figure]["median"]
    return found


def test_the_rates_are_those_of_the_runs():
    fast, slow = median("throughput", "ours"), median("direct", "ours_direct")

    assert f"{fast:,.0f} trivial jobs a second with both" in PAGE
    assert f"and {slow:,.0f} without prefetching" in PAGE
    assert f"{fast:,.0f} a second from a full table" in PAGE
    assert f"{median('throughput', 'engine_2'):,.0f} a second" in PAGE
    assert f"{median('throughput', 'ours', 'cpu_us_per_job'):.0f} µs of processor time" in PAGE


def test_the_cost_of_adding_is_that_of_the_run():
    many, one = median("add", "ours", "in_batches"), median("add", "ours", "one_by_one")

    assert f"adds {many:,.0f} a second on one connection, `add_job` {one:,.0f}" in PAGE


def test_the_figures_of_the_long_run_are_those_of_its_report():
    run = result("endurance")
    settings = run["settings"]
    told = re.search(
        r"([\d,]+) a second for (\d+) minutes.* ([\d.]+) ms at the beginning, "
        r"([\d.]+) ms at the end, ([\d.]+) ms while it was held",
        PAGE,
    )

    assert told is not None
    rate, minutes, *times = (float(each.replace(",", "")) for each in told.groups())
    assert (rate, minutes) == (settings["rate"], settings["minutes"])
    parts = ("p99_ms_first", "p99_ms_last", "p99_ms_held")
    assert times == [pytest.approx(run[part], abs=0.05) for part in parts]


def test_the_page_has_the_measured_cost_of_shards_and_lists_what_was_not_measured():
    shards = json.loads((ROOT / "benchmarks/results/shards-pg18.json").read_text())
    ratio = shards["ratios"]["shards_1"]["median"]

    assert f"{ratio:.1f} times with four shards" in PAGE
    assert "is **not measured**" in PAGE


def test_pages_have_the_number_of_connections_of_a_worker():
    options = WorkerOptions()
    # One each to listen, for heartbeats and for maintenance.
    count = 3 + options.own_connections + options.task_connections
    count += ENQUEUE_CONNECTIONS + SYNC_ENQUEUE_CONNECTIONS

    found = [
        (page.name, match[0])
        for page in sorted((ROOT / "docs").rglob("*.md"))
        for match in CONNECTIONS.finditer(page.read_text(encoding="utf-8"))
    ]

    assert {text for _, text in found} == {
        f"up to {count} connections",
        f"up to [{count} connections]",
        f"at least {count} per worker process",
        f"4 × {count} = {4 * count}",
    }, found
