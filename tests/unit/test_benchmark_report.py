"""From what was measured to medians, ratios, tables and charts."""

import xml.etree.ElementTree as ElementTree
from functools import partial
from typing import Any

import pytest

from benchmarks.chart import DARK, LIGHT, WIDTH, Bar, chart, get_step
from benchmarks.report import CHARTS, PAGES, RESULTS, charts, read_results, report
from benchmarks.rounds import Figures, alternated, ratios, summary

# Of a letter, in sizes of its font: that of wide fonts.
pytestmark = pytest.mark.single_version

AVERAGE_WIDTH = 0.6
SVG = "{http://www.w3.org/2000/svg}"
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


def test_contenders_take_turns_and_the_first_one_changes():
    order: list[str] = []

    def measure(name: str) -> Figures:
        order.append(name)
        return {"seconds": 1.0}

    alternated({name: partial(measure, name) for name in ("a", "b")}, rounds=3)

    assert order == ["a", "b", "b", "a", "a", "b"]


def test_a_ratio_is_the_median_of_the_ratios_of_the_rounds(throughput):
    assert throughput["ratios"] == {"node": {"median": 3.0, "rounds": [3.0, 1.0, 4.0]}}


def test_a_figure_that_was_not_measured_is_left_out(throughput):
    assert throughput["contenders"]["ours"]["cpu_us_per_job"]["median"] == 12.0
    assert "cpu_us_per_job" not in throughput["contenders"]["node"]


def test_a_section_of_the_page_is_written_from_the_results(throughput):
    page = "before\n<!-- figures: throughput -->\nold\n<!-- end -->\nafter\n"

    told = report(page, {"throughput": {18: throughput}})

    assert "| Ours | defaults | 300 | 12 µs |  |" in told
    assert "| Node | defaults | 100 |  | 3 × |" in told
    assert "jobs per second, PostgreSQL 18](../images/throughput-pg18.svg)" in told
    assert "old" not in told
    assert told.startswith("before\n<!-- figures: throughput -->\n")
    assert told.endswith("<!-- end -->\nafter\n")
    assert report(told, {"throughput": {18: throughput}}) == told


def test_a_missing_measurement_is_marked():
    page = "<!-- figures: latency -->\nold\n<!-- end -->\n"

    assert report(page, {}) == "<!-- figures: latency -->\n*Not measured yet.*\n<!-- end -->\n"


def test_the_newest_server_has_a_table_and_a_chart_and_no_other_has(throughput):
    page = "<!-- figures: throughput -->\n<!-- end -->\n"
    results = {"throughput": {18: throughput, 15: throughput}}

    assert list(charts(results)) == ["throughput-pg18.svg"]
    written = report(page, results)
    assert written.count(".svg") == 1
    assert written.count("**PostgreSQL") == 1


@pytest.mark.feature("F301")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_agrees_with_the_results(page):
    text = page.read_text(encoding="utf-8")

    assert report(text, read_results(RESULTS)) == text, "run `python -m benchmarks report`"


@pytest.mark.parametrize(
    "path",
    [*CHARTS.glob("*-pg*.svg"), *CHARTS.glob("reliability-*.svg")],
    ids=lambda path: path.stem,
)
def test_each_text_ends_inside_of_its_chart(path):
    texts = ElementTree.parse(path).getroot().findall(f"{SVG}text")

    starts = [each for each in texts if each.attrib.get("text-anchor", "start") == "start"]
    for each in starts:
        width = len(each.text or "") * float(each.attrib["font-size"]) * AVERAGE_WIDTH
        assert float(each.attrib["x"]) + width < WIDTH, each.text


def test_the_charts_show_what_is_in_the_results():
    for name, text in charts(read_results(RESULTS)).items():
        assert (CHARTS / name).read_text(encoding="utf-8") == text, (
            "run `python -m benchmarks report`"
        )


def test_a_chart_is_svg_with_a_bar_for_each():
    bars = [Bar("ours & <mine>", 40, "40", "ours"), Bar("theirs", 10, "10")]

    [_, *rectangles] = _rectangles(chart("Jobs", "a second", bars, unit="jobs"))

    widths = [float(each.attrib["width"]) for each in rectangles]
    assert widths[0] == pytest.approx(4 * widths[1], abs=0.2)
    assert [each.attrib["class"] for each in rectangles] == ["ours", "others"]


def test_on_a_logarithmic_chart_ten_times_as_much_is_one_step():
    bars = [Bar(f"{value}", value, "") for value in (1, 10, 100)]

    [_, *rectangles] = _rectangles(chart("Milliseconds", "each", bars, unit="ms", logarithmic=True))

    widths = [float(each.attrib["width"]) for each in rectangles]
    assert widths[1] - widths[0] == pytest.approx(widths[2] - widths[1], abs=0.2)


def test_bars_and_their_values_stay_inside_of_the_chart():
    bars = [Bar("", value, f"p99 {value:,.0f} milliseconds") for value in (1, 100_000)]

    rectangles = _rectangles(chart("Milliseconds", "each", bars, unit="ms"))
    texts = ElementTree.fromstring(chart("Milliseconds", "each", bars, unit="ms")).findall(
        f"{SVG}text"
    )

    assert max(float(each.attrib["width"]) for each in rectangles[1:]) < WIDTH
    assert max(float(each.attrib["x"]) + 6 * len(each.text or "") for each in texts) < WIDTH


def test_a_bar_without_a_label_belongs_to_the_one_above():
    bars = [Bar("a", 1, "p50"), Bar("", 2, "p99"), Bar("b", 1, "p50")]

    tops = [
        float(each.attrib["y"]) for each in _rectangles(chart("Times", "each", bars, unit="ms"))[1:]
    ]

    assert tops[1] - tops[0] < tops[2] - tops[1]


def test_an_axis_has_round_values_and_a_unit():
    drawn = chart("Jobs", "a second", [Bar("a", 65_640, "65,640")], unit="jobs per second")

    texts = [each.text for each in ElementTree.fromstring(drawn).findall(f"{SVG}text")]
    assert texts[2:7] == ["0", "20,000", "40,000", "60,000", "jobs per second"]


@pytest.mark.parametrize(
    ("most", "step"), [(1, 0.2), (4.9, 1), (7.63, 2), (137, 50), (854, 200), (65_640, 20_000)]
)
def test_an_axis_has_at_most_five_steps(most, step):
    assert get_step(most) == pytest.approx(step)


def test_a_queue_that_ran_fewer_jobs_has_a_note(throughput):
    throughput["settings"]["jobs"] = 100_000
    throughput["contenders"]["procrastinate"] = throughput["contenders"].pop("node")

    drawn = charts({"throughput": {18: throughput}})["throughput-pg18.svg"]

    assert ">Node *<" in drawn
    assert ">* Node: 2,000 of the 100,000 jobs<" in drawn


def test_the_bare_engine_has_its_own_color(throughput):
    throughput["contenders"]["engine_1"] = throughput["contenders"].pop("node")

    drawn = charts({"throughput": {18: throughput}})["throughput-pg18.svg"]

    assert [each.attrib["class"] for each in _rectangles(drawn)[1:]] == ["ours", "engine"]
    assert len({*LIGHT.values()}) == len(LIGHT)


def test_a_chart_has_colors_for_light_and_dark_pages_and_a_description():
    drawn = ElementTree.fromstring(
        chart("Jobs", "a second & more", [Bar("a", 1, "1")], unit="jobs")
    )

    assert drawn.findtext(f"{SVG}title") == "Jobs"
    assert drawn.findtext(f"{SVG}desc") == "a second & more"
    assert "prefers-color-scheme: dark" in (drawn.findtext(f"{SVG}style") or "")
    assert LIGHT.keys() == DARK.keys()
    # A color outside of a class would be the same on both.
    assert {each.attrib.get("fill") for each in drawn.iter()} == {None}


def _rectangles(text: str) -> list[ElementTree.Element]:
    return ElementTree.fromstring(text).findall(f"{SVG}rect")
