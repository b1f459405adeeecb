"""Which errors are retried, how often, and after how long."""

import asyncpg
import psycopg
import pytest
import sqlalchemy.exc

from graphile_worker._db.retry import (
    MAX_ATTEMPTS,
    MAX_DELAY_SECONDS,
    MIN_DELAY_SECONDS,
    compute_backoff,
    get_retry_delay,
    is_outage,
)
from graphile_worker.errors import LeaseExpiredError


class DatabaseError(Exception):
    def __init__(self, sqlstate: str | None) -> None:
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


@pytest.mark.parametrize("attempt", range(MAX_ATTEMPTS))
def test_the_backoff_grows_with_the_attempt_with_a_jitter_of_half(attempt):
    middle = min(MIN_DELAY_SECONDS * 1.5**attempt, MAX_DELAY_SECONDS)

    delays = [compute_backoff(attempt) for _ in range(200)]

    assert all(middle * 0.5 <= delay <= middle * 1.5 for delay in delays)
    assert len(set(delays)) > 1


def test_the_backoff_has_a_maximum():
    assert all(compute_backoff(attempt) <= MAX_DELAY_SECONDS * 1.5 for attempt in range(1000))


@pytest.mark.parametrize("sqlstate", ["40001", "40P01", "GWNOR"])
def test_a_conflict_with_another_session_is_retried_after_a_backoff(sqlstate):
    delay = get_retry_delay(DatabaseError(sqlstate), 0)

    assert delay is not None
    assert MIN_DELAY_SECONDS * 0.5 <= delay <= MIN_DELAY_SECONDS * 1.5


@pytest.mark.parametrize(
    "error", [DatabaseError("23514"), DatabaseError(None), ValueError("x"), DatabaseError("57P01")]
)
def test_other_errors_are_not_retried(error):
    assert get_retry_delay(error, 0) is None


def test_the_last_attempt_is_not_retried():
    conflict = DatabaseError("40001")

    assert get_retry_delay(conflict, MAX_ATTEMPTS - 2) is not None
    assert get_retry_delay(conflict, MAX_ATTEMPTS - 1) is None


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
