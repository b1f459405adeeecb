"""Options of a worker: what holds unless it is said, and what makes no sense."""

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from graphile_worker import ConfigurationError
from graphile_worker.options import (
    ExecutableOptions,
    LocalQueueOptions,
    RecoveryOptions,
    RefetchDelayOptions,
    WorkerOptions,
)

SECOND = timedelta(seconds=1)
DURATIONS = [
    "poll_interval",
    "cancel_after",
    "shutdown_timeout",
    "interrupted_job_retry_delay",
    "min_reset_locked_interval",
    "max_reset_locked_interval",
    "warn_blocked_after",
]
RECOVERY_DURATIONS = [
    "lease_duration",
    "heartbeat_interval",
    "rescue_interval",
    "crash_retry_delay",
]


def refusal(**given: Any) -> str:
    with pytest.raises(ConfigurationError) as refused:
        WorkerOptions(**given)
    return str(refused.value)


def recovery_refusal(**given: Any) -> str:
    with pytest.raises(ConfigurationError) as refused:
        RecoveryOptions(**given)
    return str(refused.value)


def queue_refusal(**given: Any) -> str:
    with pytest.raises(ConfigurationError) as refused:
        LocalQueueOptions(**{"size": 10, **given})
    return str(refused.value)


def delay_refusal(**given: Any) -> str:
    with pytest.raises(ConfigurationError) as refused:
        RefetchDelayOptions(**given)
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

    assert options.cancel_after == 5 * SECOND
    assert options.shutdown_timeout == 25 * SECOND


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


@pytest.mark.parametrize(
    "name", ["poll_interval", "min_reset_locked_interval", "warn_blocked_after"]
)
def test_a_loop_rests_between_its_rounds(name):
    assert f"{name} must be at least" in refusal(**{name: timedelta(0)})


@pytest.mark.parametrize(
    "name", ["cancel_after", "shutdown_timeout", "interrupted_job_retry_delay"]
)
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


# Recovery


@pytest.mark.feature("F219", "F225")
def test_unless_said_otherwise_dead_workers_are_recovered_within_45_seconds():
    recovery = WorkerOptions().recovery

    assert recovery is not None
    assert recovery.lease_duration == 30 * SECOND
    assert recovery.crash_retry_delay == timedelta(0)
    assert recovery.max_crashes == 3
    assert recovery.lease_duration + recovery.effective_rescue_interval < 45 * SECOND


@pytest.mark.parametrize("seconds", [1, 2, 30, 3600])
def test_one_option_says_how_soon_and_the_others_follow_from_it(seconds):
    recovery = RecoveryOptions(lease_duration=seconds * SECOND)

    assert recovery.effective_heartbeat_interval == seconds * SECOND / 6
    assert recovery.effective_rescue_interval == seconds * SECOND / 3


def test_what_would_follow_can_be_said_instead():
    recovery = RecoveryOptions(heartbeat_interval=2 * SECOND, rescue_interval=90 * SECOND)

    assert recovery.effective_heartbeat_interval == 2 * SECOND
    assert recovery.effective_rescue_interval == 90 * SECOND


@pytest.mark.feature("F219")
def test_recovery_can_be_turned_off():
    assert WorkerOptions(recovery=None).recovery is None


@pytest.mark.parametrize("value", [True, 30, "30s", 30 * SECOND, {"lease_duration": 30 * SECOND}])
def test_recovery_is_not_turned_on_by_anything_else(value):
    assert refusal(recovery=value) == f"recovery must be RecoveryOptions or None, got {value!r}"


@pytest.mark.parametrize("name", RECOVERY_DURATIONS)
def test_a_bare_number_is_no_duration_of_a_recovery(name):
    assert recovery_refusal(**{name: 2000}) == (
        f"{name} must be a timedelta, got 2000: write timedelta(milliseconds=2000)"
    )


@pytest.mark.parametrize("name", ["lease_duration", "crash_retry_delay"])
def test_a_recovery_needs_its_durations(name):
    assert recovery_refusal(**{name: None}) == f"{name} must be a timedelta, got None"


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [
        ("lease_duration", timedelta(milliseconds=999), "0:00:01"),
        ("lease_duration", timedelta(0), "0:00:01"),
        ("lease_duration", -SECOND, "0:00:01"),
        ("heartbeat_interval", timedelta(0), "0:00:00.001000"),
        ("rescue_interval", timedelta(0), "0:00:00.001000"),
        ("crash_retry_delay", -SECOND, "0:00:00"),
    ],
)
def test_a_duration_of_a_recovery_that_is_too_short_is_refused(name, value, least):
    assert recovery_refusal(**{name: value}) == f"{name} must be at least {least}, got {value}"


@pytest.mark.parametrize("value", [0, -1, "3", 3.0, True, None])
def test_a_job_is_recovered_at_least_once(value):
    assert recovery_refusal(max_crashes=value) == (
        f"max_crashes must be an integer from 1, got {value!r}"
    )


def test_heartbeats_come_often_enough_that_two_may_get_lost():
    assert RecoveryOptions(lease_duration=30 * SECOND, heartbeat_interval=10 * SECOND)

    message = recovery_refusal(lease_duration=30 * SECOND, heartbeat_interval=11 * SECOND)

    assert message == (
        "heartbeat_interval must be at most a third of lease_duration, got 0:00:11 and 0:00:30"
    )


def test_options_of_a_recovery_do_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        RecoveryOptions().lease_duration = SECOND  # type: ignore[misc]


# Code that stands still


def test_a_task_that_stands_still_for_five_seconds_is_named_unless_nobody_wants_to_know():
    assert WorkerOptions().warn_blocked_after == 5 * SECOND
    assert WorkerOptions(warn_blocked_after=None).warn_blocked_after is None


# Functions that run past their timeout


def test_a_task_is_paused_at_three_functions_past_their_timeout_or_never():
    assert WorkerOptions().max_runaway_threads == 3
    assert WorkerOptions(max_runaway_threads=None).max_runaway_threads is None
    for value in (0, True, "3"):
        assert refusal(max_runaway_threads=value) == (
            f"max_runaway_threads must be an integer from 1, got {value!r}"
        )


# The local queue


@pytest.mark.feature("F98")
def test_unless_said_otherwise_jobs_are_held_as_long_as_in_the_reference():
    queue = LocalQueueOptions(size=10)

    assert queue.ttl == timedelta(minutes=5)
    assert queue.refetch_delay is None
    assert queue.max_bytes == 64 * 1024 * 1024


@pytest.mark.feature("F98")
def test_a_local_queue_without_a_size_goes_by_time():
    assert WorkerOptions().local_queue == LocalQueueOptions(size=None)
    assert WorkerOptions(local_queue=None).local_queue is None


def test_a_refetch_delay_is_for_a_local_queue_with_a_size():
    refused = queue_refusal(size=None, refetch_delay=RefetchDelayOptions())
    assert refused == "refetch_delay is for a local queue with a size: give one"


@pytest.mark.feature("F292", "F293")
def test_the_ends_of_jobs_are_written_together_without_waiting_for_more():
    assert WorkerOptions().complete_batch_delay == timedelta(0)
    assert WorkerOptions().fail_batch_delay == timedelta(0)


@pytest.mark.feature("F98")
@pytest.mark.parametrize("value", [0, -1, "10", 10.0, True])
@pytest.mark.parametrize("name", ["size", "max_bytes"])
def test_a_local_queue_holds_a_job_at_least(name, value):
    assert queue_refusal(**{name: value}) == f"{name} must be an integer from 1, got {value!r}"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (300, "ttl must be a timedelta, got 300: write timedelta(milliseconds=300)"),
        ("5m", "ttl must be a timedelta, got '5m'"),
        (None, "ttl must be a timedelta, got None"),
        (-SECOND, f"ttl must be at least 0:00:00, got {-SECOND}"),
    ],
)
def test_jobs_are_held_for_a_duration(value, message):
    assert queue_refusal(ttl=value) == message


@pytest.mark.parametrize("value", [True, 100, "100ms", SECOND, {"duration": SECOND}])
def test_a_refetch_delay_is_not_turned_on_by_anything_else(value):
    assert queue_refusal(refetch_delay=value) == (
        f"refetch_delay must be RefetchDelayOptions or None, got {value!r}"
    )


@pytest.mark.feature("F98")
def test_unless_said_otherwise_jobs_gather_for_a_tenth_of_a_second_after_an_empty_fetch():
    delay = RefetchDelayOptions()

    assert delay.duration == SECOND / 10
    assert delay.threshold == 0
    assert delay.resolve_max_abort_threshold(100) == 500
    assert RefetchDelayOptions(max_abort_threshold=7).resolve_max_abort_threshold(100) == 7


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [
        *(("threshold", value, 0) for value in (-1, "1", 1.0, True, None)),
        *(("max_abort_threshold", value, 1) for value in (0, -1, "1", 1.0, True)),
    ],
)
def test_a_threshold_is_an_integer_that_is_large_enough(name, value, least):
    assert delay_refusal(**{name: value}) == (
        f"{name} must be an integer from {least}, got {value!r}"
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (100, "duration must be a timedelta, got 100: write timedelta(milliseconds=100)"),
        (None, "duration must be a timedelta, got None"),
        (-SECOND, f"duration must be at least 0:00:00, got {-SECOND}"),
    ],
)
def test_jobs_gather_for_a_duration(value, message):
    assert delay_refusal(duration=value) == message


@pytest.mark.parametrize("value", [True, 500, "500", {"size": 500}, RefetchDelayOptions()])
def test_a_local_queue_is_not_turned_on_by_anything_else(value):
    assert refusal(local_queue=value) == (
        f"local_queue must be LocalQueueOptions or None, got {value!r}"
    )


@pytest.mark.feature("F98")
def test_jobs_do_not_gather_for_longer_than_until_the_next_poll():
    delay = RefetchDelayOptions(duration=2 * SECOND)
    queue = LocalQueueOptions(size=10, refetch_delay=delay)
    assert WorkerOptions(local_queue=queue, poll_interval=2 * SECOND)

    message = refusal(local_queue=queue, poll_interval=SECOND)

    assert message == (
        "refetch_delay.duration must be at most poll_interval, got 0:00:02 and 0:00:01"
    )


@pytest.mark.parametrize(
    ("options", "name"), [(LocalQueueOptions(size=1), "size"), (RefetchDelayOptions(), "threshold")]
)
def test_options_of_a_local_queue_do_not_change(options, name):
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(options, name, 2)


# Executables


@pytest.mark.feature("F121")
def test_unless_said_otherwise_executables_are_run_as_in_the_reference():
    options = WorkerOptions().executables

    assert options.environment == "inherit"
    assert options.timeout == timedelta(hours=4)


@pytest.mark.parametrize("value", [None, True, {"environment": "minimal"}])
def test_options_of_executables_are_nothing_else(value):
    assert refusal(executables=value) == f"executables must be ExecutableOptions, got {value!r}"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"environment": "none"}, "environment must be one of inherit, minimal, got 'none'"),
        ({"timeout": 60}, "timeout must be a timedelta, got 60: write timedelta(milliseconds=60)"),
        ({"timeout": timedelta(0)}, "timeout must be at least 0:00:00.001000, got 0:00:00"),
        ({"max_output_bytes": -1}, "max_output_bytes must be an integer from 0, got -1"),
    ],
)
def test_an_option_of_executables_that_makes_no_sense_is_refused(given, message):
    with pytest.raises(ConfigurationError) as refused:
        ExecutableOptions(**given)

    assert str(refused.value) == message


def test_executables_may_take_for_ever():
    assert ExecutableOptions(timeout=None).timeout is None
