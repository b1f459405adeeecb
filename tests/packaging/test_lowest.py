"""The oldest releases that are allowed do."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.packaging.closure import installed
from tests.support.wheel import ROOT, run

# Where the package leans on others: the driver and its pools, click, json5, typing_extensions,
# OpenTelemetry, uvloop. Everything: just test-lowest.
SLICE = [
    "tests/unit/test_crontab.py",
    "tests/db/test_async_database.py",
    "tests/db/test_sync_database.py",
    "tests/integrations/test_external_pools.py::test_each_call_commits_by_itself",
    "tests/integrations/test_opentelemetry.py::test_running_a_job_is_a_span",
    "tests/integrations/test_opentelemetry.py::test_a_job_is_linked_to_the_span_that_added_it",
    "tests/e2e/test_event_loop.py::test_a_worker_runs_on_uvloop_by_default",
]


@pytest.fixture(scope="module")
def lowest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment of those."""
    folder = tmp_path_factory.mktemp("lowest") / "env"
    # Compiling what is imported once, or never, takes longer than it saves.
    run(str(ROOT / "tools/lowest"), str(folder), UV_COMPILE_BYTECODE="0")
    return folder / "bin/python"


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_the_oldest_allowed_dependencies_work(lowest: Path, pytestconfig: pytest.Config):
    found = installed(lowest)
    for requirement in bounds():
        assert Version(found[requirement.name].version) == lower_bound(requirement)

    server = ["--pg", str(pytestconfig.getoption("--pg"))]
    said = run(
        *[str(lowest), "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"],
        *server,
        *SLICE,
        cwd=ROOT,
    )

    passed = re.search(r"(\d+) passed", said)
    assert passed is not None
    assert int(passed[1]) > 300


def bounds() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    return [
        Requirement(each) for each in (*project["dependencies"], *(x for e in extras for x in e))
    ]


def lower_bound(requirement: Requirement) -> Version:
    (bound,) = requirement.specifier
    assert bound.operator == ">=", f"{requirement}: a lower bound, and no other without a reason"
    return Version(bound.version)
