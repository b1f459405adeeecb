"""The admin of a Django project."""

from collections.abc import Callable

import pytest

from tests.integrations.django.conftest import Project

OTHER_SCHEMA = 'jobs of "acme" 100%'

ADMIN = "django.contrib.admin"
APPS = [ADMIN, "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.messages"]
APPS += ["django.contrib.sessions", "graphile_worker.contrib.django", "shop"]

# Pages of Django, which the nightly tier reads with all versions.
pytestmark = [pytest.mark.timeout(600), pytest.mark.single_version]

IS_TURNED_OFF = """
from django.apps import apps
from django.contrib import admin
from graphile_worker.contrib.django.models import Job
if apps.is_installed("django.contrib.admin"):
    admin.autodiscover()
    assert not admin.site.is_registered(Job)
print("turned off", Job._meta.db_table)
"""


def add_databases(project: Project) -> None:
    """Give the project another database with a queue, and one without."""
    default = project.settings["DATABASES"]["default"]
    project.settings["DATABASES"]["other"] = {**default, "NAME": f"{default['NAME']}_other"}
    project.settings["DATABASES"]["third"] = {**default, "TEST": {"MIRROR": "default"}}
    backend = "graphile_worker.contrib.django.GraphileBackend"
    project.settings["TASKS"] = {"other": {"BACKEND": backend, "OPTIONS": {"DATABASE": "other"}}}


def test_admin_shows_and_changes_jobs(project: Project):
    add_databases(project)
    project.check("admin")


def test_admin_follows_the_schema_and_can_be_turned_off(project: Project):
    project.settings["GRAPHILE_WORKER"] = {"SCHEMA": OTHER_SCHEMA, "ADMIN": False}
    assert "No changes detected" in project.manage("makemigrations", "--check", "--dry-run").out
    table = '"jobs of ""acme"" 100%%"."jobs"'
    for apps in (APPS, [each for each in APPS if each != ADMIN]):
        project.settings["INSTALLED_APPS"] = apps
        assert f"turned off {table}" in project.manage("shell", "-c", IS_TURNED_OFF).out


@pytest.mark.nightly
@pytest.mark.serial
def test_admin_lists_a_million_jobs_in_less_than_a_second(
    project: Project, figure: Callable[[str], None]
):
    program = project.check("admin_scale", "-s")
    lines = [line.lstrip(".") for line in program.out.splitlines() if line.endswith(" ms")]
    assert len(lines) == 9
    figure("admin beside a million jobs: " + ", ".join(lines))
