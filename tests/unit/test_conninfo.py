"""Which database is meant by a string, a bare name or the environment."""

from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import sessionmaker

from graphile_worker import Client, sync
from graphile_worker._db.conninfo import find_plaintext_risk, resolve_conninfo
from graphile_worker._db.external_pools import is_conninfo_source
from graphile_worker._db.retry import is_outage, is_temporary
from graphile_worker.errors import ConfigurationError

VARIABLES = ["DATABASE_URL", "PGDATABASE", "PGHOST", "PGPORT", "PGUSER", "PGSERVICE"]
SECRET = "s3cr3t-canary"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("postgres://me@host:7/db", {"user": "me", "host": "host", "port": "7", "dbname": "db"}),
        ("postgresql:///db?host=/tmp", {"host": "/tmp", "dbname": "db"}),
        ("postgres://me:p%40ss@host/db", {"user": "me", "password": "p@ss", "host": "host"}),
        ("host=host dbname=db", {"host": "host", "dbname": "db"}),
        ("dbname='my db'", {"dbname": "my db"}),
        ("my_db", {"dbname": "my_db"}),
        ("my db", {"dbname": "my db"}),
        ("it's", {"dbname": "it's"}),
    ],
)
def test_a_url_pairs_and_a_bare_name_are_understood(given, expected):
    assert expected.items() <= conninfo_to_dict(resolve_conninfo(given)).items()


def test_the_driver_in_the_scheme_of_a_url_is_ignored():
    expected = resolve_conninfo("postgresql://me:a+b://c@host:7/db")
    drivers = ("asyncpg", "psycopg", "psycopg2", "psycopg_async", "pg8000")

    for scheme in ("postgresql", "postgres"):
        for driver in drivers:
            assert resolve_conninfo(f"{scheme}+{driver}://me:a+b://c@host:7/db") == expected
    with pytest.raises(ConfigurationError, match="is invalid"):
        resolve_conninfo("mysql+pymysql://host/db")


@pytest.mark.parametrize(
    "text", ["postgres://host/db?sslmode=require\n", " dbname=db sslmode=require\n"]
)
def test_a_line_end_as_a_file_has_it_belongs_to_no_setting(text, monkeypatch):
    monkeypatch.setenv("DATABASE_URL", text)

    for given in (text, None):
        settings = conninfo_to_dict(resolve_conninfo(given))
        assert (settings["dbname"], settings["sslmode"]) == ("db", "require")


def test_what_is_given_wins_over_the_environment(monkeypatch):
    monkeypatch.setenv("DATABASE_URL", "postgres://host/from_url")

    assert conninfo_to_dict(resolve_conninfo("given"))["dbname"] == "given"


@pytest.mark.parametrize("empty", ["", "  "])
def test_an_empty_string_is_rejected_instead_of_using_another_database(monkeypatch, empty):
    monkeypatch.setenv("DATABASE_URL", "postgres://host/from_url")

    with pytest.raises(ConfigurationError, match="empty"):
        resolve_conninfo(empty)


def test_the_tail_of_a_password_is_not_taken_for_a_host():
    with pytest.raises(ConfigurationError) as caught:
        resolve_conninfo("postgres://me:s3cr3t@canary@host/db")

    assert "canary" not in str(caught.value)


def test_database_url_is_next(monkeypatch):
    monkeypatch.setenv("DATABASE_URL", "postgres://host/from_url")
    monkeypatch.setenv("PGDATABASE", "from_libpq")

    assert conninfo_to_dict(resolve_conninfo(None))["dbname"] == "from_url"


def test_libpqs_own_variables_are_last_and_stay_libpqs(monkeypatch):
    monkeypatch.setenv("PGDATABASE", "from_libpq")

    assert "dbname" not in conninfo_to_dict(resolve_conninfo(None))


async def test_without_a_database_the_first_call_names_what_to_set():
    client, sync_client = Client(), sync.Client()

    with pytest.raises(ConfigurationError, match="no database configured.*DATABASE_URL or PGDATA"):
        await client.add_job("work")
    with pytest.raises(ConfigurationError, match="no database configured.*DATABASE_URL or PGDATA"):
        sync_client.add_job("work")


# Functions


class Vault:
    """Issues a connection string as a function, a method and an object that can be called."""

    def issue(self) -> str:
        return "dbname=db"

    __call__ = issue


def test_a_function_of_any_kind_returns_the_connection_string():
    vault = Vault()
    sources = [vault.issue, vault, lambda: "db", partial(str, "db"), cache(vault.issue)]

    for source in sources:
        assert is_conninfo_source(source), source
        assert conninfo_to_dict(resolve_conninfo(source))["dbname"] == "db", source
        Client(source)
        sync.Client(source)


@pytest.mark.parametrize("kind", [Client, sync.Client])
def test_a_class_or_a_session_factory_is_not_a_function_for_the_connection_string(kind):
    for source in (Vault, sessionmaker(), async_sessionmaker()):
        with pytest.raises(ConfigurationError, match="expected a connection string, a function"):
            kind(source)


def test_the_result_of_a_function_is_checked():
    async def issue_later() -> str:
        return "db"

    cases: list[tuple[Any, str]] = [
        (lambda: None, "returned NoneType, expected a string"),
        (lambda: b"db", "returned bytes, expected a string"),
        (issue_later, "returned coroutine, expected a string"),
        (lambda: "", "the connection string is empty"),
        (lambda: f"me:{SECRET}@host/db", "the connection string is invalid"),
    ]
    for source, message in cases:
        with pytest.raises(ConfigurationError, match=message) as caught:
            resolve_conninfo(source)
        assert SECRET not in str(caught.value)


def test_an_error_of_a_function_counts_as_an_outage_and_names_the_function():
    def issue() -> str:
        raise LookupError("no token")

    with pytest.raises(psycopg.OperationalError) as caught:
        resolve_conninfo(issue)

    text = "the function for the connection string raised LookupError: no token"
    assert str(caught.value) == text
    assert is_outage(caught.value)
    assert is_temporary(caught.value)


def test_our_connections_are_named_unless_the_caller_names_them():
    named = "postgres://host/db?application_name=shop"

    assert (
        conninfo_to_dict(resolve_conninfo("db"))["fallback_application_name"] == "graphile-worker"
    )
    assert conninfo_to_dict(resolve_conninfo(named))["application_name"] == "shop"


@pytest.mark.parametrize("given", ["db", "dbname=db", "postgres:///db?client_encoding=latin1"])
def test_our_connections_speak_utf8_because_our_statements_are_utf8(given):
    assert conninfo_to_dict(resolve_conninfo(given))["client_encoding"] == "utf8"


@pytest.mark.parametrize(
    "malformed",
    [
        f"postgres://me:{SECRET}%zz@host/db",
        f"postgres://me:{SECRET}@[::1/db",
        f"postgres://me:{SECRET}@host/db?nonsense=1",
        f"postgres://me:{SECRET}@host/db?sslmode",
        f"host=host password={SECRET} nonsense",
        f"host=host password='{SECRET}",
        f"host=host passwort={SECRET}",
        # The scheme is missing: no name of a database is meant, and the server would quote it.
        f"me:{SECRET}@host/db",
    ],
)
@pytest.mark.parametrize("kind", [Client, sync.Client])
def test_a_malformed_string_is_rejected_and_never_quoted(malformed, kind):
    with pytest.raises(ConfigurationError) as caught:
        kind(malformed)

    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


# May it be plain text?


def risk(host: str, address: str, **settings: str) -> str | None:
    info: Any = SimpleNamespace(host=host, hostaddr=address, get_parameters=lambda: settings)
    return find_plaintext_risk(info)


def test_a_connection_to_another_machine_may_be_plain_text_unless_tls_is_required():
    assert risk("db.example", "192.0.2.7") == "host=db.example, sslmode=prefer"
    for mode in ("disable", "allow", "prefer"):
        assert risk("db.example", "192.0.2.7", sslmode=mode) == f"host=db.example, sslmode={mode}"
    for mode in ("require", "verify-ca", "verify-full"):
        assert risk("db.example", "192.0.2.7", sslmode=mode) is None
    assert risk("db.example", "192.0.2.7", gssencmode="require") is None


def test_a_connection_on_this_machine_needs_no_tls():
    for host, address in (
        ("localhost", "127.0.0.1"),
        ("localhost", "::1"),
        ("127.0.3.4", "127.0.3.4"),
        ("/var/run/postgresql", ""),
        ("@abstract", ""),
    ):
        assert risk(host, address, sslmode="disable") is None
