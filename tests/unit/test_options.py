"""Options of a worker: what holds unless it is said, and what makes no sense."""

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from graphile_worker import ConfigurationError
from graphile_worker.options import WorkerOptions

SECOND = timedelta(seconds=1)
DURATIONS = [
    "poll_interval",
    "abort_after",
    "stop_after",
    "interrupted_job_retry_delay",
    "min_reset_locked_interval",
    "max_reset_locked_interval",
]


def refusal(**given: Any) -> str:
    with pytest.raises(ConfigurationError) as refused:
        WorkerOptions(**given)
    return str(refused.value)


@pytest.fixture(autouse=True)
def _no_schema_in_the_environment(monkeypatch):
    monkeypatch.delenv("GRAPHILE_WORKER_SCHEMA", raising=False)


@pytest.mark.feature("F148", "F150", "F200")
def test_unless_said_otherwise_a_worker_is_set_up_as_in_the_reference():
    options = WorkerOptions()

    assert options.concurrency == 1
    assert options.max_pool_size == 10
    assert options.poll_interval == 2 * SECOND
    assert options.schema == "graphile_worker"


def test_a_stop_ends_before_an_orchestrator_would_kill():
    options = WorkerOptions()

    assert options.abort_after == 5 * SECOND
    assert options.stop_after == 25 * SECOND


def test_the_schema_may_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("GRAPHILE_WORKER_SCHEMA", "elsewhere")

    assert WorkerOptions().schema == "elsewhere"
    assert WorkerOptions(schema="here").schema == "here"


def test_an_empty_variable_names_no_schema(monkeypatch):
    monkeypatch.setenv("GRAPHILE_WORKER_SCHEMA", "")

    assert WorkerOptions().schema == "graphile_worker"


def test_an_empty_schema_is_refused():
    assert refusal(schema="") == "schema must not be empty"


@pytest.mark.feature("F150")
@pytest.mark.parametrize("name", DURATIONS)
def test_a_bare_number_is_refused_with_what_to_write_instead(name):
    message = refusal(**{name: 2000})

    assert message == (f"{name} must be a timedelta, got 2000: write timedelta(milliseconds=2000)")


@pytest.mark.parametrize("name", DURATIONS)
def test_a_text_is_no_duration(name):
    assert refusal(**{name: "2s"}) == f"{name} must be a timedelta, got '2s'"


@pytest.mark.parametrize("name", DURATIONS)
def test_a_duration_does_not_lie_in_the_past(name):
    assert f"{name} must be at least" in refusal(**{name: -SECOND})


@pytest.mark.parametrize("name", ["poll_interval", "min_reset_locked_interval"])
def test_a_loop_rests_between_its_rounds(name):
    assert f"{name} must be at least" in refusal(**{name: timedelta(0)})


@pytest.mark.parametrize("name", ["abort_after", "stop_after", "interrupted_job_retry_delay"])
def test_none_means_that_there_is_no_such_limit_and_nothing_that_there_is_no_wait(name):
    for value in (None, timedelta(0)):
        given: dict[str, Any] = {name: value}
        assert getattr(WorkerOptions(**given), name) == value


@pytest.mark.parametrize(
    "name", ["poll_interval", "min_reset_locked_interval", "max_reset_locked_interval"]
)
def test_what_has_to_be_done_now_and_then_needs_a_duration(name):
    assert refusal(**{name: None}) == f"{name} must be a timedelta, got None"


@pytest.mark.feature("F148", "F200")
@pytest.mark.parametrize("value", [0, -1, "4", 4.0, True, None])
@pytest.mark.parametrize(("name", "least"), [("concurrency", 1), ("max_pool_size", 2)])
def test_a_count_is_an_integer_that_is_large_enough(name, least, value):
    assert refusal(**{name: value}) == f"{name} must be an integer from {least}, got {value!r}"


@pytest.mark.feature("F200")
def test_one_connection_is_not_enough():
    assert refusal(max_pool_size=1) == "max_pool_size must be an integer from 2, got 1"


@pytest.mark.feature("F148", "F200")
def test_the_least_counts_are_fine():
    options = WorkerOptions(concurrency=1, max_pool_size=2)

    assert (options.concurrency, options.max_pool_size) == (1, 2)


def test_the_longest_interval_is_not_shorter_than_the_shortest():
    message = refusal(min_reset_locked_interval=2 * SECOND, max_reset_locked_interval=SECOND)

    assert message == (
        "max_reset_locked_interval must be at least min_reset_locked_interval, "
        "got 0:00:01 and 0:00:02"
    )


@pytest.mark.parametrize("size", [2, 3, 4, 10, 11, 100])
def test_tasks_and_the_worker_have_connections_of_their_own(size):
    options = WorkerOptions(max_pool_size=size)

    assert options.own_connections >= 1
    assert options.task_connections >= 1


@pytest.mark.feature("F200")
@pytest.mark.parametrize("size", [3, 4, 10, 11, 100])
def test_one_that_listens_and_those_of_both_are_as_many_as_were_allowed(size):
    options = WorkerOptions(max_pool_size=size)

    assert 1 + options.own_connections + options.task_connections == size


def test_options_do_not_change():
    options = WorkerOptions()

    with pytest.raises(dataclasses.FrozenInstanceError):
        options.concurrency = 2  # type: ignore[misc]
