"""Which failures are asked again, how often, and after how long."""

from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy.exc

from graphile_worker._db.retry import (
    MAX_ATTEMPTS,
    MAX_DELAY_SECONDS,
    MIN_DELAY_SECONDS,
    compute_backoff,
    is_outage,
    plan_retry,
)
from graphile_worker._sql.query import Pause, Query, read_nothing
from graphile_worker.errors import LeaseExpiredError

QUERY: Query[Any] = Query("get_job", (1,), read_nothing)


class DatabaseError(Exception):
    def __init__(self, sqlstate: str | None) -> None:
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


@pytest.mark.parametrize("attempt", range(MAX_ATTEMPTS))
def test_a_delay_grows_with_the_attempt_and_is_spread_by_half_either_way(attempt):
    middle = min(MIN_DELAY_SECONDS * 1.5**attempt, MAX_DELAY_SECONDS)

    delays = [compute_backoff(attempt) for _ in range(200)]

    assert all(middle * 0.5 <= delay <= middle * 1.5 for delay in delays)
    assert len(set(delays)) > 1


def test_no_delay_is_longer_than_the_longest_with_its_spread():
    assert all(compute_backoff(attempt) <= MAX_DELAY_SECONDS * 1.5 for attempt in range(1000))


def test_an_answer_ends_the_plan():
    plan = plan_retry(QUERY)

    assert next(plan) is QUERY
    assert _ending(plan, send="answer") == "answer"


@pytest.mark.parametrize("sqlstate", ["40001", "40P01", "GWNOR"])
def test_sessions_in_each_others_way_are_asked_again_after_a_pause(sqlstate):
    plan = plan_retry(QUERY)
    next(plan)

    pause = plan.throw(DatabaseError(sqlstate))

    assert isinstance(pause, Pause)
    assert MIN_DELAY_SECONDS * 0.5 <= pause.seconds <= MIN_DELAY_SECONDS * 1.5
    assert plan.send(None) is QUERY
    assert _ending(plan, send=7) == 7


@pytest.mark.parametrize(
    "error", [DatabaseError("23514"), DatabaseError(None), ValueError("x"), DatabaseError("57P01")]
)
def test_other_errors_are_raised_at_once(error):
    plan = plan_retry(QUERY)
    next(plan)

    with pytest.raises(type(error)) as caught:
        plan.throw(error)
    assert caught.value is error


def test_the_last_attempt_raises_what_it_got():
    plan = plan_retry(QUERY)
    next(plan)
    for _ in range(MAX_ATTEMPTS - 1):
        assert isinstance(plan.throw(DatabaseError("40001")), Pause)
        assert plan.send(None) is QUERY

    last = DatabaseError("40P01")
    with pytest.raises(DatabaseError) as caught:
        plan.throw(last)

    assert caught.value is last


def _ending(plan: Any, *, send: object) -> object:
    with pytest.raises(StopIteration) as ended:
        plan.send(send)
    return ended.value.value


def test_an_outage_is_a_database_that_cannot_be_reached_or_does_not_answer():
    refused = psycopg.OperationalError("connection refused")
    outages = [
        refused,
        psycopg.errors.AdminShutdown(),
        psycopg.errors.CannotConnectNow(),
        psycopg.errors.TooManyConnections(),
        psycopg.errors.ReadOnlySqlTransaction(),
        asyncpg.InterfaceError("connection is closed"),
        asyncpg.ConnectionDoesNotExistError(),
        sqlalchemy.exc.OperationalError("select 1", {}, refused),
        sqlalchemy.exc.DBAPIError("select 1", {}, refused),
        ConnectionRefusedError(),
        TimeoutError(),
    ]
    answers = [
        psycopg.errors.DiskFull(),
        psycopg.errors.QueryCanceled(),
        psycopg.errors.InsufficientPrivilege(),
        psycopg.ProgrammingError("no result"),
        asyncpg.UndefinedTableError(),
        LeaseExpiredError(),
        ValueError(),
    ]

    assert [error for error in outages if not is_outage(error)] == []
    assert [error for error in answers if is_outage(error)] == []
