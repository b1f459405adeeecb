"""What the Django integration costs programs that do not use it, and those that do."""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from tests.integrations.django.conftest import Project

# The nightly matrix runs it on the other versions of Python and PostgreSQL.
pytestmark = [pytest.mark.timeout(600), pytest.mark.single_version]

RUNS = 9
MAX_EXTRA_SECONDS = 0.1


def test_the_package_does_not_import_django():
    code = "import graphile_worker, sys; sys.exit('django' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.serial
@pytest.mark.parametrize("has_admin", [False, True])
def test_manage_py_check_takes_at_most_100_ms_more(
    project: Project, figure: Callable[[str], None], has_admin: bool
):
    (project.folder / "shop" / "tasks.py").unlink()
    (project.folder / "acme" / "no_urls.py").write_text("urlpatterns = []\n")
    project.programs = project.programs.without_fork
    project.settings["SILENCED_SYSTEM_CHECKS"] = ["graphile_worker.W001"]
    apps = [f"django.contrib.{name}" for name in ("auth", "contenttypes", "messages", "sessions")]
    if has_admin:
        apps.append("django.contrib.admin")
    else:
        project.settings["ROOT_URLCONF"] = "acme.no_urls"
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(RUNS):
        for has_app in seconds:
            own = ["graphile_worker.contrib.django"] if has_app else []
            project.settings["INSTALLED_APPS"] = [*apps, "shop", *own]
            started = time.perf_counter()
            project.manage("check")
            seconds[has_app].append(time.perf_counter() - started)
    without = statistics.median(seconds[False])
    extra = statistics.median(seconds[True]) - without
    with_admin = "with" if has_admin else "without"
    figure(
        f"manage.py check {with_admin} the admin takes {1000 * extra:.0f} ms more, of "
        f"{1000 * without:.0f} ms"
    )
    assert extra < MAX_EXTRA_SECONDS
