"""`graphile-worker limits`: list limits, set them while workers run, and reset them."""

import json
from datetime import timedelta

import pytest

from graphile_worker import ConcurrencyLimit, RateLimit
from graphile_worker._sql.queries.limits import create_limit_rows, register_limits
from graphile_worker.limits import Limit
from tests.support.pools import open_session

pytestmark = pytest.mark.single_version


@pytest.fixture
def limits(database) -> None:
    chosen: list[Limit] = [
        ConcurrencyLimit(20, name="resize"),
        RateLimit(100, per=timedelta(minutes=1), burst=20, name="stripe"),
    ]
    with open_session(database) as connection:
        connection.run(register_limits(chosen))
        connection.run(create_limit_rows(["resize", "stripe"]))


def test_limits_set_changes_a_limit_and_limits_reset_restores_that_of_the_app(programs, limits):
    slots = programs.run_to_end("limits", "set", "resize", "5", "--actor", "ada")
    rate = programs.run_to_end("limits", "set", "stripe", "50/1m", "--burst", "3", "--json")
    table = programs.run_to_end("limits", "list")
    reset = programs.run_to_end("limits", "reset", "resize")
    again = programs.run_to_end("limits", "reset", "resize")

    assert slots.out == "limit 'resize': 5 at a time (in the app: 20 at a time)\n"
    changed = json.loads(rate.out)["limit"]
    assert (changed["starts"], changed["per_seconds"], changed["burst"]) == (50, 60.0, 3)
    assert changed["app"] == {"starts": 100, "per_seconds": 60.0, "burst": 20}
    row = next(line for line in table.out.splitlines() if line.startswith("resize"))
    assert "0 of 5 in use" in row
    assert "ada" in row
    assert reset.out == "limit 'resize': 20 at a time\n"
    assert (again.code, again.err) == (0, "limit 'resize' has the values of the app\n")


def test_limits_set_names_what_is_wrong(programs, limits):
    unknown = programs.run_to_end("limits", "set", "resise", "5")
    kind = programs.run_to_end("limits", "set", "resize", "50/m")
    value = programs.run_to_end("limits", "set", "resize", "many")

    assert (unknown.code, kind.code, value.code) == (1, 1, 1)
    assert "did you mean 'resize'?" in unknown.err
    assert "this is a concurrency limit (20 at a time): set a value such as 20" in kind.err
    assert "expected a limit, for example 20 or 50/1m, got 'many'" in value.err
