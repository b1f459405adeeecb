"""Outcomes that a task can raise, and the delay of the next attempt."""

import copy
import math
import pickle
import random
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphile_worker import ConfigurationError
from graphile_worker.retries import Backoff, Discard, JobOutcomeException, Retry, Snooze

SECOND = timedelta(seconds=1)
AWARE = datetime(2030, 1, 1, tzinfo=UTC)
NOT_DELAYS = [5, 0.5, "5s", datetime(2030, 1, 1)]


def waits(backoff: Backoff, attempts: int) -> timedelta:
    delay = backoff.delay(ValueError(), attempts)
    assert delay is not None
    return delay


# Outcomes


@pytest.mark.parametrize("delay", [SECOND, AWARE])
@pytest.mark.parametrize("signal", [Retry, Snooze])
def test_an_outcome_takes_a_delay_or_a_time(signal, delay):
    raised = signal(delay, reason="not yet")

    assert (raised.delay, raised.reason, str(raised)) == (delay, "not yet", "not yet")


@pytest.mark.parametrize("delay", NOT_DELAYS)
@pytest.mark.parametrize("signal", [Retry, Snooze])
def test_a_number_or_a_naive_datetime_is_rejected_as_delay(signal, delay):
    with pytest.raises(ConfigurationError, match="must be a timedelta or an aware datetime"):
        signal(delay)


def test_only_retry_has_an_optional_delay():
    assert Retry().delay is None
    with pytest.raises(ConfigurationError):
        Snooze(None)  # type: ignore[arg-type]


def test_an_outcome_without_a_reason_has_a_message():
    assert str(Retry()) == "the task requested a retry"
    assert str(Snooze(SECOND)) == "snoozed"
    assert Retry().reason is None


def test_discard_needs_a_reason():
    assert Discard("no such invoice").reason == "no such invoice"
    with pytest.raises(TypeError):
        Discard()  # type: ignore[call-arg]


SIGNALS = [
    Retry(),
    Retry(SECOND, reason="busy"),
    Snooze(AWARE),
    Snooze(SECOND, reason="busy"),
    Discard("gone"),
]


@pytest.mark.parametrize("signal", SIGNALS, ids=repr)
@pytest.mark.parametrize("carried", [copy.copy, lambda each: pickle.loads(pickle.dumps(each))])
def test_an_outcome_can_be_pickled(signal, carried):
    arrived = carried(signal)

    assert type(arrived) is type(signal)
    assert (arrived.args, vars(arrived)) == (signal.args, vars(signal))


@pytest.mark.parametrize("signal", SIGNALS, ids=repr)
def test_all_outcomes_have_one_base_class(signal):
    assert isinstance(signal, JobOutcomeException)
    assert isinstance(signal, Exception)


# Backoff


def test_the_delay_grows_by_the_factor():
    backoff = Backoff(SECOND, factor=3, jitter=0)

    assert [waits(backoff, n) / SECOND for n in (1, 2, 3, 4)] == [1, 3, 9, 27]


def test_the_delay_is_at_most_the_maximum():
    backoff = Backoff(SECOND, max=5 * SECOND, jitter=1)

    assert all(waits(backoff, n) <= 5 * SECOND for n in range(1, 40))


@pytest.mark.parametrize("factor", [1.0, 1.5, 2, 10, 1e300, math.inf])
@pytest.mark.parametrize("longest", [timedelta(hours=1), timedelta.max])
def test_a_high_number_of_attempts_does_not_overflow(factor, longest):
    backoff = Backoff(SECOND, factor=factor, max=longest)

    assert timedelta(0) < waits(backoff, 32_767) <= longest


def test_a_base_of_zero_has_no_delay():
    assert waits(Backoff(timedelta(0), factor=10), 32_767) == timedelta(0)


def test_the_jitter_varies_the_delay():
    backoff = Backoff(10 * SECOND, jitter=0.5)

    random.seed(7)
    found = [waits(backoff, 1) / SECOND for _ in range(300)]

    assert all(5 <= seconds <= 15 for seconds in found)
    assert min(found) < 8
    assert max(found) > 12


@given(
    st.timedeltas(min_value=timedelta(0)),
    st.floats(min_value=1, allow_nan=False),
    st.timedeltas(min_value=timedelta(0)),
    st.floats(min_value=0, max_value=1),
    st.integers(min_value=1, max_value=32_767),
)
def test_any_delay_is_between_zero_and_the_maximum(base, factor, longest, jitter, attempts):
    backoff = Backoff(base, factor, longest, jitter)

    assert timedelta(0) <= waits(backoff, attempts) <= longest


def test_backoff_fails_permanently_on_give_up_on():
    backoff = Backoff(give_up_on=(KeyError,))

    assert backoff.delay(KeyError(), 1) is None
    assert backoff.delay(LookupError(), 1) is not None


def test_backoff_retries_only_on_retry_on():
    backoff = Backoff(retry_on=(LookupError,), give_up_on=(KeyError,))

    assert backoff.delay(IndexError(), 1) is not None
    assert backoff.delay(KeyError(), 1) is None
    assert backoff.delay(ValueError(), 1) is None


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("base", 1),
        ("base", -SECOND),
        ("max", 60.0),
        ("max", -SECOND),
        ("factor", 0.5),
        ("factor", math.nan),
        ("jitter", -0.1),
        ("jitter", 1.5),
        ("jitter", math.nan),
    ],
)
def test_an_invalid_backoff_is_rejected_by_name(option, value):
    options: dict[str, Any] = {option: value}

    with pytest.raises(ConfigurationError, match=rf"Backoff\.{option} must be"):
        Backoff(**options)


@pytest.mark.parametrize("outcome", [Retry, Snooze])
def test_a_time_that_cannot_be_stored_is_rejected_when_it_is_raised(outcome):
    western = timezone(timedelta(hours=-5))
    for delay in (
        datetime.max.replace(tzinfo=western),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=5))),
        timedelta.max,
        timedelta.min,
    ):
        with pytest.raises(ConfigurationError, match="before year 1 or after 9999"):
            outcome(delay)
