"""The distributions on a clean Python of each version, with what they declare and nothing else."""

from pathlib import Path

import pytest

from tests.packaging.closure import declared, installed
from tests.support.shared_folder import made_once
from tests.support.tiers import size
from tests.support.wheel import clean_environment, interpreter, run

pytestmark = [pytest.mark.single_version, pytest.mark.timeout(180), pytest.mark.feature("F9")]

# Every machine that runs the gate has 3.11; the nightly tier installs the wheel on all.
PYTHONS = size(gate=["3.11"], nightly=["3.11", "3.12", "3.13", "3.14"])

# Every module but those of the extras, and every public name.
IMPORTS = """
import importlib, pkgutil, sys
import graphile_worker, psycopg
import graphile_worker.sync

absent = {}
for module in pkgutil.walk_packages(graphile_worker.__path__, "graphile_worker."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            absent[module.name] = str(error)
for name in graphile_worker.__all__:
    getattr(graphile_worker, name)
print(psycopg.pq.__impl__)
print(*absent)
for told in absent.values():
    print(told)
"""


@pytest.fixture(scope="module", params=PYTHONS)
def python(request: pytest.FixtureRequest, wheel: Path, tmp_path_factory) -> Path:
    """A clean Python with the wheel."""
    version: str = request.param
    found = interpreter(version)
    if found is None:
        pytest.skip(f"Python {version} is not on this machine")

    def make(folder: Path) -> None:
        clean_environment(folder / version, found, str(wheel))

    return made_once(tmp_path_factory, f"clean-{version}", make) / version / "bin/python"


def test_an_install_contains_the_declared_dependencies(python: Path):
    found = installed(python)

    assert set(found) == declared("graphile-worker", found, python.parents[1].name)
    assert set(found) >= {"psycopg-binary", "psycopg-pool", "click", "json5"}


def test_everything_can_be_imported_and_the_driver_is_the_fast_one(python: Path):
    implementation, absent, *told = run(
        str(python), "-I", "-W", "error", "-c", IMPORTS
    ).splitlines()

    assert implementation == "binary"
    assert absent.split() == [
        "graphile_worker.contrib.dashboard",
        "graphile_worker.contrib.django",
        "graphile_worker.contrib.opentelemetry",
        "graphile_worker.contrib.prometheus",
        "graphile_worker.contrib.sentry",
        "graphile_worker.contrib.structlog",
    ]
    assert told == [
        'the dashboard needs Starlette: pip install "graphile-worker[dashboard]"',
        'this needs Django: pip install "graphile-worker[django]"',
        'tracing needs OpenTelemetry: pip install "graphile-worker[otel]"',
        'the collector needs prometheus_client: pip install "graphile-worker[prometheus]"',
        'this needs the Sentry SDK: pip install "graphile-worker[sentry]"',
        'this needs structlog: pip install "graphile-worker[structlog]"',
    ]


def test_the_command_prints_its_version(python: Path):
    version = installed(python)["graphile-worker"].version

    by_name = run(str(python.parent / "graphile-worker"), "--version")
    by_module = run(str(python), "-m", "graphile_worker", "--version")

    assert by_name == by_module == f"graphile-worker, version {version}\n"


def test_the_sdist_builds_with_its_declared_requirements(sdist: Path, tmp_path: Path):
    found = interpreter("3.11")
    if found is None:
        pytest.skip("Python 3.11 is not on this machine")

    python = clean_environment(tmp_path / "3.11", found, f"{sdist}[otel,uvloop]")

    assert {"opentelemetry-api", "uvloop"} <= set(installed(python))
    assert run(str(python.parent / "graphile-worker"), "--version").startswith("graphile-worker, ")
