"""Options of a worker: defaults and validation."""

import dataclasses
from datetime import timedelta
from typing import Any

import click
import pytest

from graphile_worker import ConfigurationError
from graphile_worker._cli.main import command
from graphile_worker._settings.definitions import SETTINGS
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


def error(**given: Any) -> str:
    with pytest.raises(ConfigurationError) as raised:
        WorkerOptions(**given)
    return str(raised.value)


def recovery_error(**given: Any) -> str:
    with pytest.raises(ConfigurationError) as raised:
        RecoveryOptions(**given)
    return str(raised.value)


def queue_error(**given: Any) -> str:
    with pytest.raises(ConfigurationError) as raised:
        LocalQueueOptions(**{"size": 10, **given})
    return str(raised.value)


def delay_error(**given: Any) -> str:
    with pytest.raises(ConfigurationError) as raised:
        RefetchDelayOptions(**given)
    return str(raised.value)


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_the_help_of_an_option_stands_alone_without_its_default(setting):
    declared = setting.field

    assert declared.help[0].isupper()
    assert not declared.help.endswith(".")
    assert "default" not in declared.help
    assert declared.detail == "" or declared.detail.endswith(".")


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_the_help_of_a_flag_has_at_most_60_characters_with_its_default(setting):
    [flag] = [each for each in command.params if setting.flag in each.opts]

    assert isinstance(flag, click.Option)
    assert flag.help is not None
    assert len(flag.help) <= 60
    assert setting.default is None or "(default: " in flag.help


@pytest.fixture(autouse=True)
def _no_schema_in_the_environment(monkeypatch):
    monkeypatch.delenv("GRAPHILE_WORKER_SCHEMA", raising=False)


@pytest.mark.feature("F148", "F150", "F200")
def test_the_defaults_are_those_of_graphile_worker_for_node():
    options = WorkerOptions()

    assert options.concurrency == 1
    assert options.max_pool_size == 10
    assert options.poll_interval == 2 * SECOND
    assert options.schema == "graphile_worker"


def test_a_shutdown_ends_before_an_orchestrator_kills_the_worker():
    options = WorkerOptions()

    assert options.cancel_after == 5 * SECOND
    assert options.shutdown_timeout == 25 * SECOND


def test_an_environment_variable_sets_the_default_schema(monkeypatch):
    monkeypatch.setenv("GRAPHILE_WORKER_SCHEMA", "elsewhere")

    assert WorkerOptions().schema == "elsewhere"
    assert WorkerOptions(schema="here").schema == "here"


def test_an_empty_environment_variable_does_not_change_the_default_schema(monkeypatch):
    monkeypatch.setenv("GRAPHILE_WORKER_SCHEMA", "")

    assert WorkerOptions().schema == "graphile_worker"


def test_an_empty_schema_is_rejected():
    assert error(schema="") == "schema must not be empty"


@pytest.mark.feature("F150")
@pytest.mark.parametrize("name", DURATIONS)
def test_a_bare_number_is_rejected_with_the_timedelta_to_write(name):
    message = error(**{name: 2000})

    assert message == (f"{name} must be a timedelta, got 2000. Write timedelta(milliseconds=2000).")


@pytest.mark.parametrize("name", DURATIONS)
def test_a_string_is_not_a_duration(name):
    assert error(**{name: "2s"}) == f"{name} must be a timedelta, got '2s'"


@pytest.mark.parametrize("name", DURATIONS)
def test_a_negative_duration_is_rejected(name):
    assert f"{name} must be at least" in error(**{name: -SECOND})


@pytest.mark.parametrize(
    "name", ["poll_interval", "min_reset_locked_interval", "warn_blocked_after"]
)
def test_an_interval_of_zero_is_rejected(name):
    assert f"{name} must be at least" in error(**{name: timedelta(0)})


@pytest.mark.parametrize(
    "name", ["cancel_after", "shutdown_timeout", "interrupted_job_retry_delay"]
)
def test_a_limit_can_be_none_or_zero(name):
    for value in (None, timedelta(0)):
        given: dict[str, Any] = {name: value}
        assert getattr(WorkerOptions(**given), name) == value


@pytest.mark.parametrize(
    "name", ["poll_interval", "min_reset_locked_interval", "max_reset_locked_interval"]
)
def test_an_interval_cannot_be_none(name):
    assert error(**{name: None}) == f"{name} must be a timedelta, got None"


@pytest.mark.feature("F148", "F200")
@pytest.mark.parametrize("value", [0, -1, "4", 4.0, True, None])
@pytest.mark.parametrize(("name", "minimum"), [("concurrency", 1), ("max_pool_size", 2)])
def test_a_count_is_an_integer_of_at_least_its_minimum(name, minimum, value):
    assert error(**{name: value}) == f"{name} must be an integer from {minimum}, got {value!r}"


@pytest.mark.feature("F200")
def test_one_connection_is_not_enough():
    assert error(max_pool_size=1) == "max_pool_size must be an integer from 2, got 1"


@pytest.mark.feature("F148", "F200")
def test_the_minimum_of_a_count_is_accepted():
    options = WorkerOptions(concurrency=1, max_pool_size=2)

    assert (options.concurrency, options.max_pool_size) == (1, 2)


def test_the_longest_interval_must_not_be_shorter_than_the_shortest():
    message = error(min_reset_locked_interval=2 * SECOND, max_reset_locked_interval=SECOND)

    assert message == (
        "max_reset_locked_interval must be at least min_reset_locked_interval, "
        "got 0:00:01 and 0:00:02"
    )


@pytest.mark.parametrize("size", [2, 3, 4, 10, 11, 100])
def test_tasks_and_the_worker_have_separate_connections(size):
    options = WorkerOptions(max_pool_size=size)

    assert options.own_connections >= 1
    assert options.task_connections >= 1


@pytest.mark.feature("F200")
@pytest.mark.parametrize("size", [3, 4, 10, 11, 100])
def test_the_connections_add_up_to_max_pool_size(size):
    options = WorkerOptions(max_pool_size=size)

    assert 1 + options.own_connections + options.task_connections == size


def test_options_are_immutable():
    options = WorkerOptions()

    with pytest.raises(dataclasses.FrozenInstanceError):
        options.concurrency = 2  # type: ignore[misc]


# Recovery


@pytest.mark.feature("F219", "F225")
def test_by_default_jobs_of_dead_workers_are_recovered_within_45_seconds():
    recovery = WorkerOptions().recovery

    assert recovery is not None
    assert recovery.lease_duration == 30 * SECOND
    assert recovery.crash_retry_delay == timedelta(0)
    assert recovery.max_crashes == 3
    assert recovery.lease_duration + recovery.effective_rescue_interval < 45 * SECOND


@pytest.mark.parametrize("seconds", [1, 2, 30, 3600])
def test_the_intervals_of_recovery_follow_from_the_lease_duration(seconds):
    recovery = RecoveryOptions(lease_duration=seconds * SECOND)

    assert recovery.effective_heartbeat_interval == seconds * SECOND / 6
    assert recovery.effective_rescue_interval == seconds * SECOND / 3


def test_the_intervals_of_recovery_can_be_set():
    recovery = RecoveryOptions(heartbeat_interval=2 * SECOND, rescue_interval=90 * SECOND)

    assert recovery.effective_heartbeat_interval == 2 * SECOND
    assert recovery.effective_rescue_interval == 90 * SECOND


@pytest.mark.feature("F219")
def test_recovery_can_be_turned_off():
    assert WorkerOptions(recovery=None).recovery is None


@pytest.mark.parametrize("value", [True, 30, "30s", 30 * SECOND, {"lease_duration": 30 * SECOND}])
def test_recovery_accepts_only_its_options_or_none(value):
    assert error(recovery=value) == f"recovery must be RecoveryOptions or None, got {value!r}"


@pytest.mark.parametrize("name", RECOVERY_DURATIONS)
def test_a_bare_number_is_not_a_duration_of_recovery(name):
    assert recovery_error(**{name: 2000}) == (
        f"{name} must be a timedelta, got 2000. Write timedelta(milliseconds=2000)."
    )


@pytest.mark.parametrize("name", ["lease_duration", "crash_retry_delay"])
def test_durations_of_recovery_cannot_be_none(name):
    assert recovery_error(**{name: None}) == f"{name} must be a timedelta, got None"


@pytest.mark.parametrize(
    ("name", "value", "minimum"),
    [
        ("lease_duration", timedelta(milliseconds=999), "0:00:01"),
        ("lease_duration", timedelta(0), "0:00:01"),
        ("lease_duration", -SECOND, "0:00:01"),
        ("heartbeat_interval", timedelta(0), "0:00:00.001000"),
        ("rescue_interval", timedelta(0), "0:00:00.001000"),
        ("crash_retry_delay", -SECOND, "0:00:00"),
    ],
)
def test_a_duration_of_recovery_below_its_minimum_is_rejected(name, value, minimum):
    assert recovery_error(**{name: value}) == f"{name} must be at least {minimum}, got {value}"


@pytest.mark.parametrize("value", [0, -1, "3", 3.0, True, None])
def test_max_crashes_is_an_integer_from_1(value):
    assert recovery_error(max_crashes=value) == (
        f"max_crashes must be an integer from 1, got {value!r}"
    )


def test_the_heartbeat_interval_is_at_most_a_third_of_the_lease_duration():
    assert RecoveryOptions(lease_duration=30 * SECOND, heartbeat_interval=10 * SECOND)

    message = recovery_error(lease_duration=30 * SECOND, heartbeat_interval=11 * SECOND)

    assert message == (
        "heartbeat_interval must be at most a third of lease_duration, got 0:00:11 and 0:00:30"
    )


def test_recovery_options_are_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        RecoveryOptions().lease_duration = SECOND  # type: ignore[misc]


# Blocked tasks


def test_a_blocked_task_is_logged_after_five_seconds_or_never():
    assert WorkerOptions().warn_blocked_after == 5 * SECOND
    assert WorkerOptions(warn_blocked_after=None).warn_blocked_after is None


# Functions that run past their timeout


def test_three_timed_out_functions_pause_a_task_by_default():
    assert WorkerOptions().max_runaway_threads == 3
    assert WorkerOptions(max_runaway_threads=None).max_runaway_threads is None
    for value in (0, True, "3"):
        assert error(max_runaway_threads=value) == (
            f"max_runaway_threads must be an integer from 1, got {value!r}"
        )


# The local queue


@pytest.mark.feature("F98")
def test_the_defaults_of_a_local_queue_are_those_of_graphile_worker_for_node():
    queue = LocalQueueOptions(size=10)

    assert queue.ttl == timedelta(minutes=5)
    assert queue.refetch_delay is None
    assert queue.max_bytes == 64 * 1024 * 1024


@pytest.mark.feature("F98")
def test_the_local_queue_is_on_without_a_size_by_default():
    assert WorkerOptions().local_queue == LocalQueueOptions(size=None)
    assert WorkerOptions(local_queue=None).local_queue is None


def test_a_refetch_delay_needs_a_local_queue_with_a_size():
    message = queue_error(size=None, refetch_delay=RefetchDelayOptions())
    assert message == "refetch_delay needs a local queue with a size. Set size too."


@pytest.mark.feature("F292", "F293")
def test_the_batch_delays_are_zero_by_default():
    assert WorkerOptions().complete_batch_delay == timedelta(0)
    assert WorkerOptions().fail_batch_delay == timedelta(0)


@pytest.mark.feature("F98")
@pytest.mark.parametrize("value", [0, -1, "10", 10.0, True])
@pytest.mark.parametrize("name", ["size", "max_bytes"])
def test_the_sizes_of_a_local_queue_are_integers_from_1(name, value):
    assert queue_error(**{name: value}) == f"{name} must be an integer from 1, got {value!r}"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (300, "ttl must be a timedelta, got 300. Write timedelta(milliseconds=300)."),
        ("5m", "ttl must be a timedelta, got '5m'"),
        (None, "ttl must be a timedelta, got None"),
        (-SECOND, f"ttl must be at least 0:00:00, got {-SECOND}"),
    ],
)
def test_the_ttl_is_a_duration(value, message):
    assert queue_error(ttl=value) == message


@pytest.mark.parametrize("value", [True, 100, "100ms", SECOND, {"duration": SECOND}])
def test_a_refetch_delay_accepts_only_its_options_or_none(value):
    assert queue_error(refetch_delay=value) == (
        f"refetch_delay must be RefetchDelayOptions or None, got {value!r}"
    )


@pytest.mark.feature("F98")
def test_by_default_a_refetch_delay_follows_an_empty_fetch_for_100_ms():
    delay = RefetchDelayOptions()

    assert delay.duration == SECOND / 10
    assert delay.threshold == 0
    assert delay.resolve_max_abort_threshold(100) == 500
    assert RefetchDelayOptions(max_abort_threshold=7).resolve_max_abort_threshold(100) == 7


@pytest.mark.parametrize(
    ("name", "value", "minimum"),
    [
        *(("threshold", value, 0) for value in (-1, "1", 1.0, True, None)),
        *(("max_abort_threshold", value, 1) for value in (0, -1, "1", 1.0, True)),
    ],
)
def test_a_threshold_is_an_integer_of_at_least_its_minimum(name, value, minimum):
    assert delay_error(**{name: value}) == (
        f"{name} must be an integer from {minimum}, got {value!r}"
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (100, "duration must be a timedelta, got 100. Write timedelta(milliseconds=100)."),
        (None, "duration must be a timedelta, got None"),
        (-SECOND, f"duration must be at least 0:00:00, got {-SECOND}"),
    ],
)
def test_the_length_of_a_refetch_delay_is_a_duration(value, message):
    assert delay_error(duration=value) == message


@pytest.mark.parametrize("value", [True, 500, "500", {"size": 500}, RefetchDelayOptions()])
def test_a_local_queue_accepts_only_its_options_or_none(value):
    assert error(local_queue=value) == (
        f"local_queue must be LocalQueueOptions or None, got {value!r}"
    )


@pytest.mark.feature("F98")
def test_a_refetch_delay_is_at_most_the_poll_interval():
    delay = RefetchDelayOptions(duration=2 * SECOND)
    queue = LocalQueueOptions(size=10, refetch_delay=delay)
    assert WorkerOptions(local_queue=queue, poll_interval=2 * SECOND)

    message = error(local_queue=queue, poll_interval=SECOND)

    assert message == (
        "refetch_delay.duration must be at most poll_interval, got 0:00:02 and 0:00:01"
    )


@pytest.mark.parametrize(
    ("options", "name"), [(LocalQueueOptions(size=1), "size"), (RefetchDelayOptions(), "threshold")]
)
def test_local_queue_options_are_immutable(options, name):
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(options, name, 2)


# Executables


@pytest.mark.feature("F121")
def test_by_default_executables_run_as_in_graphile_worker_for_node():
    options = WorkerOptions().executables

    assert options.environment == "inherit"
    assert options.timeout == timedelta(hours=4)


@pytest.mark.parametrize("value", [None, True, {"environment": "minimal"}])
def test_executables_accept_only_their_options(value):
    assert error(executables=value) == f"executables must be ExecutableOptions, got {value!r}"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"environment": "none"}, "environment must be one of inherit, minimal, got 'none'"),
        ({"timeout": 60}, "timeout must be a timedelta, got 60. Write timedelta(milliseconds=60)."),
        ({"timeout": timedelta(0)}, "timeout must be at least 0:00:00.001000, got 0:00:00"),
        ({"max_output_bytes": -1}, "max_output_bytes must be an integer from 0, got -1"),
    ],
)
def test_an_invalid_option_of_executables_is_rejected(given, message):
    with pytest.raises(ConfigurationError) as raised:
        ExecutableOptions(**given)

    assert str(raised.value) == message


def test_executables_can_run_without_a_timeout():
    assert ExecutableOptions(timeout=None).timeout is None
