"""What an error of the database says, however many libraries have wrapped it."""

from types import SimpleNamespace

import pytest

from graphile_worker._sql.sqlstate import DatabaseErrorInfo, get_error_info, get_sqlstate


class Psycopg(Exception):
    def __init__(self, message: str, sqlstate: str | None, constraint: str | None = None) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.diag = SimpleNamespace(constraint_name=constraint)


class Psycopg2(Exception):
    def __init__(self, message: str, pgcode: str | None, constraint: str | None = None) -> None:
        super().__init__(message)
        self.pgcode = pgcode
        self.diag = SimpleNamespace(constraint_name=constraint)


class Asyncpg(Exception):
    def __init__(self, message: str, sqlstate: str, constraint: str | None = None) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.constraint_name = constraint


class Sqlalchemy(Exception):
    def __init__(self, orig: BaseException) -> None:
        super().__init__("(wrapped)")
        self.orig = orig


class Django(Exception):
    pass


@pytest.mark.parametrize("kind", [Psycopg, Psycopg2, Asyncpg])
def test_an_error_of_each_driver_has_code_and_constraint(kind):
    error = kind("no such luck", "23514", "jobs_key_check")

    assert get_error_info(error) == DatabaseErrorInfo("23514", "jobs_key_check")


@pytest.mark.parametrize("kind", [Psycopg, Psycopg2, Asyncpg])
def test_an_error_may_be_about_no_constraint(kind):
    assert get_error_info(kind("bad", "22003")) == DatabaseErrorInfo("22003", None)


@pytest.mark.parametrize("kind", [Psycopg, Psycopg2, Asyncpg])
def test_what_sqlalchemy_wraps_is_found_in_orig(kind):
    assert get_sqlstate(Sqlalchemy(kind("bad", "22003"))) == "22003"


@pytest.mark.parametrize("kind", [Psycopg, Psycopg2, Asyncpg])
def test_what_django_wraps_is_found_in_the_cause(kind):
    assert get_sqlstate(_caused(Django("bad"), by=kind("bad", "22003"))) == "22003"


def test_a_constraint_is_found_deeper_than_the_code():
    # SQLAlchemy over asyncpg: the adapter's error has the code, its cause has the name as well.
    adapter = Psycopg2("adapted", "23514")
    error = Sqlalchemy(_caused(adapter, by=Asyncpg("bad", "23514", "jobs_key_check")))

    assert get_error_info(error) == DatabaseErrorInfo("23514", "jobs_key_check")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("not of the database"),
        Psycopg("connection lost", None),
        Psycopg2("connection lost", None),
        Sqlalchemy(ValueError("inner")),
    ],
)
def test_an_error_of_the_client_has_no_code(error):
    assert get_error_info(error) is None
    assert get_sqlstate(error) is None


def test_errors_that_cause_each_other_are_walked_once():
    one, other = Django("one"), Django("other")
    one.__cause__, other.__cause__ = other, one

    assert get_error_info(one) is None


def test_the_context_of_an_error_does_not_count():
    error = Django("later")
    error.__context__ = Psycopg("earlier", "22003")

    assert get_error_info(error) is None


def test_a_code_that_is_not_text_is_ignored():
    error = Django("odd")
    error.sqlstate = 7  # type: ignore[attr-defined]  # somebody else's attribute of that name

    assert get_error_info(error) is None


def _caused(error: Exception, *, by: Exception) -> Exception:
    error.__cause__ = by
    return error
