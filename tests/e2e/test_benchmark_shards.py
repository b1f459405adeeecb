"""The measurement of shards runs all of its jobs, with and without the code of shards."""

import pytest

from benchmarks.server import served
from benchmarks.shards import measure

pytestmark = pytest.mark.timeout(300)


def test_the_jobs_of_two_servers_run_in_one_worker(pytestconfig):
    major = pytestconfig.getoption("--pg")
    with served(major) as first, served(major) as second:
        for servers, is_sharded in (([first, second], True), ([first], False)):
            found = measure(servers, 200, is_sharded=is_sharded)

            assert (found["jobs_per_second"] or 0) > 0
            assert (found["cpu_us_per_job"] or 0) > 0
