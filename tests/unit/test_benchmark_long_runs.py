"""What held snapshots, long runs and waiting jobs are judged by."""

import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from benchmarks.chart import PANEL, Line, lines
from benchmarks.endurance import Length, Second, backlogs, series
from benchmarks.endurance import judged as judged_endurance
from benchmarks.histogram import Histogram
from benchmarks.report import charts, report
from benchmarks.snapshot import PRIMARY_KEY, Cell, full_scans
from benchmarks.snapshot import judged as judged_snapshot
from benchmarks.waiting import CONCURRENCY, KINDS, Pool, Run, Sample, violations
from benchmarks.waiting import judged as judged_waiting

pytestmark = pytest.mark.single_version

AROUND = {"postgresql": "18.4", "python": "3.11.7", "cores": 2, "date": "2026-01-01"}
SVG = "{http://www.w3.org/2000/svg}"


def waited(*seconds: float) -> Histogram:
    found = Histogram()
    for each in seconds:
        found.add(each)
    return found


# Histograms


def test_a_percentile_is_right_to_a_twentieth():
    times = waited(*(each / 1000 for each in range(1, 1001)))

    assert times.percentile(50) == pytest.approx(0.5, rel=0.06)
    assert times.percentile(99) == pytest.approx(0.99, rel=0.06)
    assert times.percentile(100) >= 1


def test_histograms_can_be_serialized_and_merged():
    one, other = waited(0.001, 0.002), waited(0.5)

    again = Histogram(one.counts())
    again.include(other)

    assert again.count == 3
    assert again.percentile(100) == pytest.approx(0.5, rel=0.06)


def test_no_time_at_all_is_a_time_too():
    assert waited(0.0, -0.001).percentile(99) < 0.0001


def test_nothing_has_no_percentile():
    with pytest.raises(ValueError, match="nothing was added"):
        Histogram().percentile(50)


# A held snapshot


def node(kind: str, *parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"Node Type": kind, "Actual Loops": 1, "Plans": list(parts), **more}


def test_a_scan_of_the_primary_key_without_a_condition_reads_all_of_it():
    key = {"Index Name": "jobs_pkey1"}
    plan = node(
        "Update",
        node("Merge Join", node("Index Scan", **key), node("Index Scan", **key, **ASKED)),
    )

    assert list(full_scans(plan)) == [PRIMARY_KEY]


ASKED = {"Index Cond": "(id = 1)"}


def test_what_a_plan_did_not_come_to_is_not_counted():
    scan = node("Seq Scan", **{"Relation Name": "_private_jobs"})
    never = {**scan, "Actual Loops": 0}

    assert list(full_scans(node("Append", scan, never))) == ["the whole table"]


def test_our_worst_plan_is_compared_with_the_references_best():
    cells = [
        Cell(f"{who} claim", size, "none", plan, buffers * size, scans)
        for size in (1, 100)
        for who, plan, buffers, scans in (
            ("reference's", "custom", 800, ()),
            ("reference's", "generic", 80_000, (PRIMARY_KEY,)),
            ("our", "custom", 700, ()),
            ("our", "generic", 1200, ("the whole table",)),
        )
    ]

    found = judged_snapshot(cells)

    assert found["claims"]["1"] == {
        "reference_best": 800,
        "reference_worst": 80_000,
        "ours_best": 700,
        "ours_worst": 1200,
        "ratio": 1.5,
    }
    assert (found["reference_scans_primary_key"], found["ours_scans_primary_key"]) == (True, False)


# A long run


@pytest.fixture
def run() -> list[Second]:
    """Two minutes at ten jobs a second; from 40 to 80 dead rows only grow."""
    seconds = [Second(added=10, waits=waited(*[0.01] * 10), dead=100) for _ in range(120)]
    for number in range(40, 80):
        seconds[number].dead = 100 * (number - 38)
        seconds[number].waits = waited(*[0.1] * 10)
    for number in range(80, 90):
        seconds[number].dead = 4100
    return seconds


LENGTH = Length(total=120, held_from=40, held_until=80)


def test_the_snapshot_is_held_in_the_middle():
    assert Length.of(20, 4) == Length(total=1200, held_from=480, held_until=720)
    assert Length.of(3, 0.7) == Length(total=180, held_from=69, held_until=111)


def test_the_end_is_compared_with_the_beginning(run):
    for second in run[-30:]:
        second.waits = waited(*[0.02] * 10)

    found = judged_endurance(run, LENGTH, 10)

    assert found["p99_ratio"] == pytest.approx(2, rel=0.1)
    assert found["p99_ms_held"] == pytest.approx(100, rel=0.1)
    assert found["rate_done"] == 10


def test_dead_rows_are_swept_when_a_fifth_of_their_peak_is_left(run):
    found = judged_endurance(run, LENGTH, 10)

    assert (found["dead_rows_peak"], found["seconds_to_a_fifth"]) == (4100, 10)


def test_dead_rows_that_stay_are_reported(run):
    for second in run[80:]:
        second.dead = 4100

    assert judged_endurance(run, LENGTH, 10)["seconds_to_a_fifth"] is None


def test_jobs_that_wait_are_those_added_and_not_begun(run):
    run[50].waits = Histogram()
    run[60].waits = waited(*[1.0] * 15)

    found = backlogs(run)

    assert (found[49], found[50], found[59], found[60], found[-1]) == (0, 10, 10, 5, 5)
    assert judged_endurance(run, LENGTH, 10)["slowest_10_seconds"] == 9


def test_pages_are_reported_per_added_job(run):
    for number, second in enumerate(run):
        second.pages = 1000 + 200 * number
    run[70].pages += 100

    found = judged_endurance(run, LENGTH, 10)

    assert series(run)["pages_per_job"][:3] == [0, 20, 20]
    assert found["most_pages_per_job"] == 30


def test_a_long_run_is_reported_as_table_and_chart(run):
    settings = {"minutes": 2, "rate": 10, "held_minutes": 0.66, "concurrency": 24}
    result = {
        "surroundings": AROUND,
        "settings": settings,
        **judged_endurance(run, LENGTH, 10),
        **series(run),
    }

    told = report("<!-- figures: endurance -->\n<!-- end -->", {"endurance": {18: result}})
    drawn = charts({"endurance": {18: result}})["endurance-pg18.svg"]

    assert "| most dead rows | 4,100 |" in told
    assert "| time until a fifth of them is left | 10 s |" in told
    assert len(ElementTree.fromstring(drawn).findall(f"{SVG}polyline")) == 5


def test_a_line_has_a_point_for_each_second_and_a_shade_where_asked():
    drawn = ElementTree.fromstring(lines("Jobs", "", [Line("a & b", [0, 5, 10])], range(1, 2)))

    [line] = drawn.findall(f"{SVG}polyline")
    points = [tuple(map(float, each.split(","))) for each in line.attrib["points"].split()]
    [_, shade] = drawn.findall(f"{SVG}rect")

    assert [y - points[0][1] for _, y in points] == [0, -PANEL / 2, -PANEL]
    assert float(shade.attrib["x"]) == pytest.approx(points[1][0])


# Jobs that wait


def pools(fast: list[Run], slow: list[Run]) -> list[Pool]:
    return [Pool("fast", "one", fast), Pool("slow", "two", slow)]


def looks(*held: tuple[int, str, float], ready: bool = False) -> list[Sample]:
    """The same was seen at 10.00, 10.02 and 10.04."""
    return [Sample(10 + number * 0.02, ready, held) for number in range(3)]


def test_a_job_that_is_held_while_another_pool_idles_is_wrong():
    found = list(violations(pools([], []), looks((1, "two", 9.8))))

    assert found == [pytest.approx(0.22), pytest.approx(0.24)]


def test_a_job_that_is_held_for_a_moment_is_not():
    assert list(violations(pools([], []), looks((1, "two", 9.95)))) == []


def test_a_job_that_has_begun_does_not_wait():
    running = [Run(1, 9.0, 9.01, 11.0)]

    assert list(violations(pools([], running), looks((1, "two", 9.0)))) == []


def test_a_pool_that_could_take_what_is_ready_is_not_kept_idle():
    assert list(violations(pools([], []), looks((1, "two", 9.8), ready=True))) == []


def test_a_pool_with_all_its_workers_at_work_does_not_idle():
    busy = [Run(job, 9.0, 9.0, 11.0) for job in range(CONCURRENCY)]

    assert list(violations(pools(busy, []), looks((100, "two", 9.8)))) == []


def test_a_pool_cannot_be_idle_because_of_itself():
    busy = [Run(job, 9.0, 9.0, 11.0) for job in range(CONCURRENCY)]

    assert list(violations(pools([], busy), looks((100, "one", 9.8)))) == []


def test_waits_are_reported_with_the_released_jobs():
    ran = [Run(1, 9.9, 9.95, 10.1), Run(2, 9.9, 10.0, 10.1)]

    found = judged_waiting(pools(ran, []), looks((1, "one", 9.9), (3, "one", 9.9)))

    assert (found["jobs"], found["max_ms"], found["violations"]) == (2, 100.0, 0)
    assert (found["handed_back"], found["handed_back_after_ms"]) == (1, 140.0)
    assert found["pools"]["slow"] == {"jobs": 0}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_pile_is_always_the_same(kind):
    assert kind.pile() == kind.pile()
    assert len(kind.pile()) == kind.jobs
    assert set(kind.pile()) == set(kind.seconds)
