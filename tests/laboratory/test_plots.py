"""The charts and the table of docs/about/reliability.md agree with the reports of the runs."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from tests.laboratory.faults import Injector
from tests.laboratory.plots import (
    CHARTS,
    FAULTS,
    RECOVERY,
    RESULTS,
    charts,
    faults,
    read_runs,
)
from tests.laboratory.versions import ROOT

RUNS = read_runs(RESULTS)
PAGE = (ROOT / "docs/about/reliability.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| .* \| `([\w-]+)\.json` \|$", re.MULTILINE)


@pytest.mark.parametrize("name", charts(RUNS))
def test_a_chart_shows_the_reports(name):
    kept = (CHARTS / name).read_text(encoding="utf-8")

    assert kept == charts(RUNS)[name], "run `python -m tests.laboratory.plots`"
    assert ElementTree.fromstring(kept).tag.endswith("svg")
    assert f"](../images/{name})" in PAGE


def test_each_kind_of_fault_has_a_label():
    assert all(hasattr(Injector, f"_{kind}") for kind in FAULTS)
    assert faults(RUNS).keys() <= FAULTS.keys()


def test_a_run_without_a_figure_has_no_bar():
    [first, *_] = RUNS
    runs = {first: RUNS[first], "none": {**RUNS[first], "report": {"figures": {}}}}

    drawn = charts(runs)["reliability-recovery.svg"]

    assert f">{first}: " in drawn
    assert ">none" not in drawn


@pytest.mark.parametrize("name", RUNS)
def test_the_table_of_runs_agrees_with_each_report(name):
    [row] = [match[0] for match in ROW.finditer(PAGE) if match[1] == name]
    _, seed, jobs, injected, violations, seconds, _ = [
        each.strip() for each in row[2:-1].split(" | ")
    ]
    run = RUNS[name]

    assert (seed, jobs) == (str(run["seed"]), f"{run['acknowledged']:,}")
    assert sum(map(int, re.findall(r"\d+", injected))) == sum(run["faults"].values())
    assert (violations[:1], run["report"]["violations"]) == ("0", 0)
    times = run["report"]["figures"][RECOVERY]
    assert seconds.startswith(", ".join(f"{each:.1f}" for each in times) + " s")


def test_the_first_lines_of_the_page_add_up_the_runs():
    figures = {
        int(each.replace(",", "")) for each in re.findall(r"[\d,]+\d", PAGE.split("\n## ")[0])
    }

    assert sum(run["acknowledged"] for run in RUNS.values()) in figures
    assert faults(RUNS).total() in figures
    assert sum(run["changes"] for run in RUNS.values()) in figures
    # The words that stand in for the chart.
    assert set(faults(RUNS).values()) <= figures
