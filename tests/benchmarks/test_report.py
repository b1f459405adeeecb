"""From what was measured to medians, ratios, tables and charts."""

import xml.etree.ElementTree as ElementTree
from functools import partial
from typing import Any

import pytest

from benchmarks.chart import Bar, chart
from benchmarks.report import CHARTS, PAGE, RESULTS, charts, read_results, report
from benchmarks.rounds import Figures, alternated, ratios, summary

AROUND = {"postgresql": "18.4", "python": "3.11.7", "cores": 2, "date": "2026-01-01"}


@pytest.fixture
def throughput() -> dict[str, Any]:
    """What a run of two queues left behind."""
    found: dict[str, list[Figures]] = {
        "ours": [{"jobs_per_second": rate, "cpu_us_per_job": 12.0} for rate in (300, 200, 400)],
        "node": [{"jobs_per_second": rate, "cpu_us_per_job": None} for rate in (100, 200, 100)],
    }
    return {
        "surroundings": AROUND,
        "settings": {"jobs": 1000, "rounds": 3},
        "contenders": {
            name: {"label": name.title(), "settings": "defaults", **summary(rounds)}
            for name, rounds in found.items()
        },
        "ratios": ratios(found, "ours", "jobs_per_second"),
    }


def test_everybody_takes_turns_and_not_always_the_same_is_first():
    order: list[str] = []

    def measure(name: str) -> Figures:
        order.append(name)
        return {"seconds": 1.0}

    alternated({name: partial(measure, name) for name in ("a", "b")}, rounds=3)

    assert order == ["a", "b", "b", "a", "a", "b"]


def test_a_ratio_is_the_median_of_the_ratios_of_the_rounds(throughput):
    assert throughput["ratios"] == {"node": {"median": 3.0, "rounds": [3.0, 1.0, 4.0]}}


def test_a_figure_that_nobody_took_is_left_out(throughput):
    assert throughput["contenders"]["ours"]["cpu_us_per_job"]["median"] == 12.0
    assert "cpu_us_per_job" not in throughput["contenders"]["node"]


def test_a_section_of_the_page_is_written_from_the_results(throughput):
    page = "before\n<!-- figures: throughput -->\nold\n<!-- end -->\nafter\n"

    told = report(page, {"throughput": {18: throughput}})

    assert "| Ours | defaults | 300 | 12 µs |  |" in told
    assert "| Node | defaults | 100 |  | 3 × |" in told
    assert "![throughput on PostgreSQL 18](images/throughput-pg18.svg)" in told
    assert "old" not in told
    assert told.startswith("before\n<!-- figures: throughput -->\n")
    assert told.endswith("<!-- end -->\nafter\n")
    assert report(told, {"throughput": {18: throughput}}) == told


def test_what_was_not_measured_is_said_so():
    page = "<!-- figures: latency -->\nold\n<!-- end -->\n"

    assert report(page, {}) == "<!-- figures: latency -->\n*Not measured yet.*\n<!-- end -->\n"


@pytest.mark.feature("F301")
def test_the_page_and_its_charts_say_what_is_in_the_results():
    results = read_results(RESULTS)
    page = PAGE.read_text(encoding="utf-8")

    assert report(page, results) == page, "run `python -m benchmarks report`"
    for name, text in charts(results).items():
        assert (CHARTS / name).read_text(encoding="utf-8") == text


def test_a_chart_is_svg_with_a_bar_for_each():
    bars = [Bar("ours & <mine>", 40, "40", is_ours=True), Bar("theirs", 10, "10")]

    [_, *rectangles] = _rectangles(chart("Jobs", bars))

    widths = [float(each.attrib["width"]) for each in rectangles]
    assert widths[0] == pytest.approx(4 * widths[1], abs=0.2)
    assert rectangles[0].attrib["fill"] != rectangles[1].attrib["fill"]


def test_on_a_logarithmic_chart_ten_times_as_much_is_one_step():
    bars = [Bar(f"{value}", value, "") for value in (1, 10, 100)]

    [_, *rectangles] = _rectangles(chart("Milliseconds", bars, logarithmic=True))

    widths = [float(each.attrib["width"]) for each in rectangles]
    assert widths[1] - widths[0] == pytest.approx(widths[2] - widths[1], abs=0.2)


def _rectangles(text: str) -> list[ElementTree.Element]:
    return ElementTree.fromstring(text).findall("{http://www.w3.org/2000/svg}rect")
