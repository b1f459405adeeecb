"""The measurement of several databases runs all of its jobs."""

from benchmarks.server import served
from benchmarks.shards import shape


def test_two_databases_are_emptied_side_by_side(pytestconfig):
    with served(pytestconfig.getoption("--pg")) as server:
        found = shape(server, 200, shards=2, workers_each=1)()

    assert (found["jobs_per_second"] or 0) > 0
    assert (found["cpu_us_per_job"] or 0) > 0
