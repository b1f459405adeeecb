"""Limits of tasks: values, names, definitions, and what the command parses."""

from datetime import timedelta
from typing import Any

import pytest

from graphile_worker import App, ConcurrencyLimit, ConfigurationError, RateLimit, TaskRouter
from graphile_worker.ops.limits import parse_limit
from graphile_worker.tasks import find_limits
from tests.support.cases import for_each

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
STRIPE = RateLimit(100, per=MINUTE, burst=20, name="stripe")


def _any(value: object) -> Any:
    return value


INVALID: list[tuple[Any, str]] = [
    (lambda: ConcurrencyLimit(0), "slots must be from 1 to 10,000, got 0"),
    (lambda: ConcurrencyLimit(True), "slots must be an integer, got True"),
    (lambda: ConcurrencyLimit(3, name=""), "name of a limit must be a text"),
    (lambda: ConcurrencyLimit(3, name="x" * 129), "at most 128 characters"),
    (lambda: RateLimit(1, per=_any(60)), "per must be a timedelta, got 60"),
    (lambda: RateLimit(1, per=timedelta(0)), "per must be from 1 µs to 366 days"),
    (lambda: RateLimit(0, per=MINUTE), "starts must be from 1 to"),
    (lambda: RateLimit(1, per=MINUTE, burst=0), "burst must be from 1 to"),
    # Its starts are due over more than 100 years.
    (lambda: RateLimit(2, per=366 * DAY, burst=200), "burst must be from 1 to 199, got 200"),
    (
        lambda: App().task(limit=_any(20)),
        "limit must be a ConcurrencyLimit, a RateLimit or several",
    ),
    (lambda: App().task(limit=_any("stripe")), "limit must be a ConcurrencyLimit"),
    (
        lambda: App().task(limit=[ConcurrencyLimit(1), ConcurrencyLimit(2)]),
        "a task has two limits without a name",
    ),
    (lambda: App().task(limit=[STRIPE, STRIPE]), "a task has two limits named 'stripe'"),
]


@for_each(INVALID)
def test_an_invalid_limit_is_rejected_with_its_value(case):
    build, message = case

    with pytest.raises(ConfigurationError, match=message):
        build()


def test_a_limit_without_a_name_has_that_of_the_task():
    app = App()
    router: TaskRouter[None] = TaskRouter(prefix="shop.")
    app.include(router)

    @router.task(limit=[ConcurrencyLimit(5), STRIPE])
    def charge() -> None: ...

    @app.batch_task(limit=STRIPE)
    def refund(items: list[int]) -> None: ...

    @app.task
    def free() -> None: ...

    assert find_limits(app.tasks()) == {
        "shop.charge": (ConcurrencyLimit(5, name="shop.charge"), STRIPE),
        "refund": (STRIPE,),
    }


def test_two_definitions_of_one_name_are_rejected_also_in_an_included_router():
    app = App()
    app.task(limit=STRIPE)(test_a_limit_without_a_name_has_that_of_the_task)
    router: TaskRouter[None] = TaskRouter()

    @router.task(limit=ConcurrencyLimit(3, name="stripe"))
    def charge() -> None: ...

    with pytest.raises(ConfigurationError, match="limit 'stripe' has two definitions: 100 per 1m"):
        app.task(limit=RateLimit(5, per=MINUTE, name="stripe"))(lambda: None)
    with pytest.raises(ConfigurationError, match="3 at a time in task 'charge'"):
        app.include(router)


@for_each(
    [
        ("20", ConcurrencyLimit(20)),
        ("50/1m", RateLimit(50, per=MINUTE)),
        ("50/m", RateLimit(50, per=MINUTE)),
        ("1/1h30m", RateLimit(1, per=timedelta(minutes=90))),
    ]
)
def test_the_command_parses_slots_and_rates(case):
    text, limit = case

    assert parse_limit(text) == limit


@for_each(["", "-1", "x", "5/", "5/x", "/1m", "5/0s", "٣", "1" * 30])
def test_the_command_rejects_other_texts(text):
    with pytest.raises(ConfigurationError):
        parse_limit(text)


def test_only_a_rate_limit_has_a_burst():
    assert parse_limit("5/1m", burst=3) == RateLimit(5, per=MINUTE, burst=3)
    with pytest.raises(ConfigurationError, match="no burst"):
        parse_limit("5", burst=3)
