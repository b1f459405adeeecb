"""Each system check fires, and is silent where nothing is wrong."""

import logging
import sys
from datetime import timedelta

import django
import pytest
from django.conf import settings
from django.core.checks import run_checks
from django.core.management import call_command
from django.db import connections
from django.test import override_settings

from graphile_worker._sql.identifiers import derive_companion_schema, quote_identifier
from graphile_worker.contrib.django import app

# Without pytest-django: this is not a test of the project, but its checks in one process.
django.setup()

SCHEMA = app.schema
QUOTED = quote_identifier(SCHEMA)


def queue(**values: object) -> override_settings:
    return override_settings(GRAPHILE_WORKER={"SCHEMA": SCHEMA, **values})


def find(*databases: str) -> dict[str, str]:
    """Run the checks, and return the text of those of this app by their number."""
    found = {
        each.id.removeprefix("graphile_worker."): f"{each.msg} {each.hint or ''}"
        for each in run_checks(databases=list(databases) or None)
        if str(each.id).startswith("graphile_worker.")
    }
    # psycopg2 may be installed for other tests.
    found.pop("W001", None)
    return found


def test_nothing_is_wrong_with_the_project():
    assert find() == {}


def test_e001_the_app_is_not_installed():
    from graphile_worker.contrib.django._checks import check_installed

    assert check_installed() == []
    installed = [name for name in settings.INSTALLED_APPS if "graphile_worker" not in name]
    with override_settings(INSTALLED_APPS=installed):
        [message] = check_installed()
    assert message.id == "graphile_worker.E001"
    assert "'graphile_worker.contrib.django' to INSTALLED_APPS" in message.hint


def test_e002_an_alias_is_unknown_or_not_postgresql():
    for key in ("DATABASE", "WORKER_DATABASE"):
        with queue(**{key: "nope"}):
            assert f"['{key}'] names 'nope', which is not in DATABASES" in find()["E002"]
        with queue(**{key: "lite"}):
            assert f"['{key}'] names 'lite', which is not a PostgreSQL" in find()["E002"]
        with queue(**{key: "limited"}):
            assert find() == {}


def test_e003_a_key_or_a_type_is_not_valid():
    for values, words in (
        ({"DATABAZE": "default"}, "unknown key 'DATABAZE', did you mean 'DATABASE'?"),
        ({"IMPORTS": "shop.jobs"}, "['IMPORTS'] must be of type list or tuple"),
        ({"RETENTION": timedelta(days=1)}, "['RETENTION'] must be of type Retention"),
        ({"WORKER": {"concurrencyy": 1}}, "did you mean 'concurrency'?"),
        ({"WORKER": {"app": "shop.worker"}}, "['WORKER'] cannot set 'app'"),
    ):
        with queue(**values):
            assert words in find()["E003"], values
    with override_settings(GRAPHILE_WORKER=["default"]):
        assert "must be a dict" in find()["E003"]
    with queue(WORKER={"concurrency": 3, "poll_interval": timedelta(seconds=1)}, IMPORTS=()):
        assert find() == {}


def test_w001_psycopg2_is_installed(monkeypatch: pytest.MonkeyPatch):
    from graphile_worker.contrib.django import _checks

    for spec, count in ((None, 0), (object(), 1)):
        monkeypatch.setattr(_checks, "find_spec", lambda name, spec=spec: spec)
        messages = [each for each in run_checks() if each.id == "graphile_worker.W001"]
        assert len(messages) == count


def test_w002_the_pool_is_smaller_than_the_concurrency(monkeypatch: pytest.MonkeyPatch):
    for pool, concurrency, fires in (
        (True, 4, False),
        (True, 5, True),
        ({"min_size": 1, "max_size": 2}, 3, True),
        ({"min_size": 1, "max_size": 3}, 3, False),
        ({"min_size": 2}, 3, True),
        (False, 9, False),
    ):
        monkeypatch.setitem(connections.settings["default"], "OPTIONS", {"pool": pool})
        with queue(WORKER={"concurrency": concurrency}):
            assert ("W002" in find()) is fires, (pool, concurrency)


def test_w004_the_logger_is_disabled(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logging.getLogger("graphile_worker"), "disabled", True)
    assert "disable_existing_loggers" in find()["W004"]


def test_e010_the_schema_is_missing_behind_or_too_new(monkeypatch: pytest.MonkeyPatch):
    assert find() == {}
    assert "is not installed" in find("default")["E010"]
    assert "manage.py migrate" in find("default")["E010"]
    with queue(MIGRATE=False):
        assert "Its owner has to install" in find("default")["E010"]
        with override_settings(MIGRATION_MODULES={"graphile_worker": None}):
            assert find("default") == {}
    monkeypatch.setattr(sys, "argv", ["manage.py", "migrate"])
    call_command("migrate", verbosity=0, skip_checks=False)
    monkeypatch.undo()
    assert find("default", "lite", "limited") == {}
    with connections["default"].cursor() as cursor:
        cursor.execute(f"insert into {QUOTED}.migrations (id, breaking) values (1000000, true)")
    assert "upgrade graphile-worker" in find("default")["E010"]
    with connections["default"].cursor() as cursor:
        cursor.execute(f"delete from {QUOTED}.migrations where id = 1000000")
    assert find("default") == {}


def test_w011_row_level_security_hides_the_queue():
    with connections["default"].cursor() as cursor:
        role = quote_identifier(connections["limited"].settings_dict["USER"])
        for name in (SCHEMA, derive_companion_schema(SCHEMA)):
            cursor.execute(f"grant usage on schema {quote_identifier(name)} to {role}")
            cursor.execute(
                f"grant select on all tables in schema {quote_identifier(name)} to {role}"
            )
    with queue(DATABASE="limited"):
        assert "hides all rows of" in find("limited")["W011"]
    with connections["default"].cursor() as cursor:
        for table in (
            "_private_jobs",
            "_private_job_queues",
            "_private_tasks",
            "_private_known_crontabs",
        ):
            cursor.execute(f"create policy p on {QUOTED}.{table} to {role} using (true)")
    with queue(DATABASE="limited"):
        assert find("limited") == {}


def test_e010_a_role_cannot_read_the_queue():
    with connections["default"].cursor() as cursor:
        role = quote_identifier(connections["limited"].settings_dict["USER"])
        cursor.execute(f"revoke usage on schema {QUOTED} from {role}")
    with queue(DATABASE="limited"):
        assert "cannot be read: permission denied" in find("limited")["E010"]
