"""Jobs that a Django project adds. The gate runs checks/enqueue.py beside checks/testing.py."""

from contextlib import closing
from typing import Any

import pytest

from tests.integrations.django.conftest import Project
from tests.support.announcements import Announcements

pytestmark = pytest.mark.timeout(600)

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "server-side binding": {"OPTIONS": {"server_side_binding": True}},
    "pool": {"OPTIONS": {"pool": True}},
}


def add_other_database(project: Project, **more: Any) -> None:
    """Give the project a second database with a queue, and both of them options."""
    databases = project.settings["DATABASES"]
    databases["other"] = project.describe_database(f"{project.database.name}_other", **more)
    databases["default"].update(more)
    project.settings["TASKS"] = {
        "default": {
            "BACKEND": "graphile_worker.contrib.django.GraphileBackend",
            "OPTIONS": {"DATABASE": "other"},
        }
    }


@pytest.mark.nightly
@pytest.mark.parametrize("name", OPTIONS)
def test_jobs_are_added_on_the_connection_of_django(project: Project, name: str):
    add_other_database(project, **OPTIONS[name])

    project.check("enqueue", "checks/testing.py")


ADD_IN_TRANSACTIONS = """
from django.db import transaction
from graphile_worker.contrib.django import app

# The announcer of this app is connected to one database only.
app.add_job("task", conn="other")
assert app._get_sync_client()._announcer._thread is None
with transaction.atomic():
    app.add_job("task")
    app.add_job("task", job_key="key")
try:
    with transaction.atomic():
        app.add_job("lost")
        raise ZeroDivisionError
except ZeroDivisionError:
    pass
app.add_job("task")
"""


def test_coalesced_jobs_are_announced_after_the_commit(project: Project):
    project.settings["GRAPHILE_WORKER"]["NOTIFY"] = "coalesced"
    project.settings["DATABASES"]["other"] = project.describe_database(project.database.name)
    project.manage("migrate")
    with closing(Announcements(project.database.dsn)) as announcements:
        project.manage("shell", "-c", ADD_IN_TRANSACTIONS)

        assert sum(announcements.read()) == 4
