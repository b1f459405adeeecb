"""The backend of `django.tasks`, in a project."""

import pytest

from tests.integrations.django.conftest import Project

# A program with Django, migrations and workers takes long on a busy machine.
# The nightly matrix runs it on the other versions of Python and PostgreSQL.
pytestmark = [pytest.mark.timeout(600), pytest.mark.single_version]

BACKEND = "graphile_worker.contrib.django.GraphileBackend"


@pytest.fixture
def task_project(project: Project) -> Project:
    """A project whose tasks of `django.tasks` are jobs."""
    project.settings["TASKS"] = {
        "default": {"BACKEND": BACKEND, "QUEUES": ["default", "low"]},
    }
    project.settings["GRAPHILE_WORKER"]["IMPORTS"] = ["shop.django_tasks"]
    return project


def test_the_backend_follows_the_interface_of_django_also_beside_workers_that_die(
    task_project: Project,
):
    task_project.settings["DATABASES"]["other"] = {
        **task_project.settings["DATABASES"]["default"],
        "NAME": "does_not_exist",
    }
    # In one program, because its start and its migrations take seconds.
    task_project.check("backend", "checks/backend_workers.py", "-k", "not storm")


@pytest.mark.nightly
def test_a_thousand_jobs_under_kills_have_one_outcome_each(task_project: Project):
    task_project.check("backend_workers", "-k", "storm")
