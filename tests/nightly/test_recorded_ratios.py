"""Throughput, latency and fetches against what was written down: has a ratio become clearly worse?

After a change that is meant to make one better or worse:
`python -m benchmarks short --out benchmarks/results/short.json`.
"""

import copy
from typing import Any

import pytest

from benchmarks.server import served
from benchmarks.short import RECORDED, recorded, regressions, short


@pytest.mark.feature("F297", "F301")
@pytest.mark.serial
@pytest.mark.single_version
@pytest.mark.timeout(400)
def test_no_ratio_is_clearly_worse_than_the_recorded_one(pytestconfig, schema, figure):
    if schema != "graphile_worker":
        pytest.skip("measured once is enough")
    with served(pytestconfig.getoption("--pg")) as server:
        found = short(server)
    before = recorded()

    for name in ("throughput", "latency"):
        for other, ratio in found[name]["ratios"].items():
            was = before[name]["ratios"][other]["median"]
            figure(f"{name} against {other}: ratio {ratio['median']}, recorded {was}")
    figure(f"steepest fetch: {steepest(found)}, recorded {steepest(before)}")
    assert regressions(found, before) == []


def steepest(found: dict[str, Any]) -> str:
    cells = [
        (cell["ratio"], f"{size} of {table['label']}")
        for table in found["matrix"]["tables"]
        for size, cell in table["cells"].items()
    ]
    ratio, which = max(cells)
    return f"{ratio} × for {which}"


def test_half_the_rate_is_a_regression():
    now = copy.deepcopy(recorded())
    ratio = now["throughput"]["ratios"]["node"]
    ratio["median"] *= 0.45

    [line] = regressions(now, recorded())

    assert line.startswith(f"throughput against node: {ratio['median']} of its rate")


def test_twice_the_latency_is_a_regression():
    now = copy.deepcopy(recorded())
    now["latency"]["ratios"]["node"]["median"] *= 2.2

    [line] = regressions(now, recorded())

    assert line.startswith("latency against node: ")


def test_a_fetch_that_grows_with_the_table_is_a_regression():
    now = copy.deepcopy(recorded())
    table = now["matrix"]["tables"][-1]
    table["cells"]["100"]["ratio"] = 100.0

    [line] = regressions(now, recorded())

    assert line.startswith(f"100 of {table['label']}: 100.0 of the clean table's time")


def test_the_recorded_ratios_are_not_a_regression():
    assert RECORDED.exists()
    assert regressions(recorded(), recorded()) == []
