"""What the package is made of: licence, versions, what it imports and what it must not."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import graphile_worker
from tests.support.cases import for_each

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "graphile_worker"
MODULES = sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))
UNSAFE_MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "yaml"}
UNSAFE_CALLS = {"eval", "exec", "__import__"}
SQL = re.compile(
    r"^\s*(select|insert|update|delete|create|alter|lock|drop|truncate)\s", re.IGNORECASE
)

# The one question that is not about our schema: does this connection still live?
LIVENESS = [
    ("_db/sync.py", "select 1"),
    ("_db/notifications.py", "select pg_catalog.pg_notification_queue_usage()"),
    ("_db/psycopg.py", "select 1"),
]


@pytest.mark.feature("F309")
def test_just_has_the_commands_of_the_contributing_page():
    just = Path(sys.executable).parent / "just"

    commands = subprocess.run([just, "--summary"], cwd=ROOT, capture_output=True, text=True)

    assert {"setup", "check", "test", "test-all", "fix"} <= set(commands.stdout.split())


@pytest.mark.feature("F7")
def test_python_3_11_is_the_oldest():
    project = _project()

    assert project["requires-python"] == ">=3.11"
    for minor in (11, 12, 13, 14):
        assert f"Programming Language :: Python :: 3.{minor}" in project["classifiers"]


@pytest.mark.feature("F12")
def test_the_license_is_mit():
    assert _project()["license"] == "MIT"
    assert "MIT License" in (ROOT / "LICENSE").read_text(encoding="utf-8")


@pytest.mark.feature("F13")
def test_the_version_is_0_x_and_there_is_a_changelog():
    assert re.match(r"0\.\d+\.", _project()["version"])
    assert "Unreleased" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_package_is_marked_as_typed():
    assert (files("graphile_worker") / "py.typed").is_file()


def test_all_public_names_exist_and_are_sorted():
    names = graphile_worker.__all__

    assert names == sorted(names)
    assert len(names) == len(set(names))
    assert all(hasattr(graphile_worker, name) for name in names)


@pytest.mark.parametrize("module", ["graphile_worker", "graphile_worker.sync"])
def test_importing_the_package_imports_no_optional_package(module):
    optional = (
        "django",
        "sqlalchemy",
        "asyncpg",
        "psycopg2",
        "alembic",
        "fastapi",
        "opentelemetry",
        "prometheus_client",
        "sentry_sdk",
        "structlog",
    )
    code = f"import sys, {module}; print([m for m in {optional} if m in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.feature("F14")
@for_each(MODULES)
def test_nothing_that_runs_code_from_data_is_imported_or_called(module):
    tree = _tree(module)

    assert set(_imported(tree)) & UNSAFE_MODULES == set()
    assert set(_called(tree)) & UNSAFE_CALLS == set()


@pytest.mark.feature("F46")
@for_each([each for each in MODULES if not each.startswith("_sql/")])
def test_python_strings_contain_no_sql(module):
    found = {text for text in _strings(_tree(module)) if SQL.match(text)}

    assert found - {text for place, text in LIVENESS if place == module} == set()


def test_the_modules_of_sql_contain_no_statements():
    for module in MODULES:
        if module.startswith("_sql/"):
            assert [text for text in _strings(_tree(module)) if SQL.match(text)] == []


@for_each(MODULES)
def test_each_module_has_a_docstring(module):
    assert ast.get_docstring(_tree(module))


def _project() -> dict[str, Any]:
    parsed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project: dict[str, Any] = parsed["project"]
    return project


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse((SOURCE / module).read_text(encoding="utf-8"))


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def _called(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


def _strings(tree: ast.Module) -> Iterator[str]:
    """Every string but docstrings, which begin with a verb as statements do."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in docstrings:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
