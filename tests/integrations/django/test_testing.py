"""Tests of a Django project: their jobs are in the test database and nowhere else."""

import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from graphile_worker import sync
from tests.integrations.django.conftest import Project
from tests.integrations.django.test_enqueue import add_other_database
from tests.support.rows import count_jobs
from tests.support.sql import Sql

# The nightly matrix runs it on the other versions of Python and PostgreSQL.
pytestmark = [pytest.mark.timeout(600), pytest.mark.single_version]


@pytest.fixture
def developer(project: Project) -> Iterator[Sql]:
    """The developer's database. It has a queue, so that a test could add jobs to it."""
    add_other_database(project)
    database = project.database
    with sync.Client(database.dsn, schema=database.schema) as client:
        client.migrate()
    with closing(Sql(database.dsn, database.schema)) as sql:
        yield sql


def test_jobs_of_tests_with_pytest_django_are_in_the_test_database(
    project: Project, developer: Sql
):
    project.check("testing", "checks/enqueue.py")

    assert count_jobs(developer) == 0


MODULES = ("checks.testing", "checks.enqueue")

# Each kind of run: whether Django's own runner runs it, its options, and changed settings.
RUNS: dict[str, tuple[bool, tuple[str, ...], dict[str, Any]]] = {
    "runner": (True, (), {}),
    "runner, parallel": (True, ("--parallel", "2"), {}),
    "runner, kept database": (True, ("--keepdb",), {}),
    "runner, without migrations": (True, (), {"TEST": {"MIGRATE": False}}),
    "pytest, xdist": (False, ("-n", "2"), {}),
    "pytest, kept database": (False, ("--reuse-db",), {}),
    "pytest, without migrations": (False, ("--nomigrations",), {}),
    "pytest, long connections": (False, (), {"CONN_MAX_AGE": 600, "CONN_HEALTH_CHECKS": True}),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", RUNS)
def test_no_run_of_tests_adds_jobs_to_the_database_of_the_developer(
    project: Project, developer: Sql, name: str
):
    is_runner, options, more = RUNS[name]
    add_other_database(project, **more)
    # A kept database must work in the next run too.
    for _ in range(2 if "kept" in name else 1):
        if is_runner:
            program = project.manage("test", *MODULES, *options)
            assert "OK" in program.err
            assert "is being accessed" not in program.err
        else:
            program = project.check("testing", "checks/enqueue.py", *options)
            assert "is being accessed" not in program.out

    assert count_jobs(developer) == 0


@pytest.mark.nightly
def test_a_test_database_has_a_queue_where_another_program_owns_the_schema(
    project: Project, developer: Sql
):
    project.settings["GRAPHILE_WORKER"]["MIGRATE"] = False

    project.check("enqueue")

    assert count_jobs(developer) == 0


@pytest.mark.nightly
def test_pytest_django_rejects_jobs_that_the_import_of_a_test_adds(
    project: Project, developer: Sql
):
    """Django's own runner does not: there such a job is where a row of a model would be."""
    project.programs.write("checks/at_import.py", "from shop.tasks import pay\npay.enqueue(1)\n")

    program = project.programs.start(
        [sys.executable, "-m", "pytest", "-q", "checks/at_import.py"], project._environment({})
    )

    assert program.end(within=120) == 2
    assert "Database access not allowed" in program.out
    assert count_jobs(developer) == 0


@pytest.mark.nightly
def test_flush_keeps_the_jobs_outside_of_a_test_environment(project: Project, developer: Sql):
    project.manage("migrate")
    developer.run("select from :schema.add_job('pay')")

    project.manage("flush", "--no-input")

    assert count_jobs(developer) == 1
