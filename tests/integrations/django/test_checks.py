"""`manage.py check` finds mistakes in the settings and in the database."""

import psycopg
import pytest
from psycopg import sql

from tests.integrations.django.conftest import Project

# The nightly matrix runs it on the other versions of Python and PostgreSQL.
pytestmark = [pytest.mark.timeout(600), pytest.mark.single_version]


def test_each_check_fires_and_is_silent_where_nothing_is_wrong(project: Project):
    name = project.database.name
    role = f"{name}_role"
    with psycopg.connect(project.database.dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("create role {} login").format(sql.Identifier(role)))
    project.settings["DATABASES"] |= {
        "lite": {"ENGINE": "django.db.backends.sqlite3", "NAME": "lite.sqlite3"},
        "limited": project.describe_database(name, USER=role),
    }
    project.check("system_checks", "-p", "no:django")
