"""The compose file for contributors, and the commands of its page."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import TestDatabase
from tests.packaging.compose import check_compose_file
from tests.support.sql import Sql
from tests.support.wheel import ROOT, run

PAGE = ROOT / "docs/contributing/compose.md"

pytestmark = pytest.mark.feature("F310")


@pytest.fixture(scope="module")
def services() -> dict:
    found: dict = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    return found


@pytest.mark.single_version
def test_the_compose_file_is_valid():
    check_compose_file(ROOT / "compose.yaml")


def test_every_command_of_the_file_and_its_page_exists():
    just = Path(sys.executable).parent / "just"
    known = run(str(just), "--summary", cwd=ROOT).split()

    text = (ROOT / "compose.yaml").read_text() + PAGE.read_text()
    typed = set(re.findall(r"\bjust ([a-z-]+)", text))

    assert typed == {"bench", "check", "check-style", "fix", "install", "reset", "test"}
    assert typed <= set(known)


def test_each_service_that_the_page_names_exists(services: dict):
    named = re.findall(r"docker compose (?:exec|logs -f) (\w+)", PAGE.read_text())

    assert set(named) == set(services) == {"database", "program"}


def test_the_sources_of_the_compose_build_exist(services: dict):
    assert (ROOT / services["program"]["build"] / "Dockerfile").is_file()


def test_reset_leaves_an_empty_schema(database: TestDatabase, sql: Sql):
    sql.run("select :schema.add_job('old')")
    variables = {"DATABASE_URL": database.url, "GRAPHILE_WORKER_SCHEMA": database.schema}

    said = run(sys.executable, "-m", "tools.reset", cwd=ROOT, **variables)

    assert said == f"schema {database.schema} is empty, at level 20\n"
    assert sql.value("select count(*) from :schema.jobs") == 0


def test_reset_requires_a_database():
    command = [sys.executable, "-m", "tools.reset"]

    done = subprocess.run(command, cwd=ROOT, env={}, capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (
        1,
        "DATABASE_URL is not set. Set it to the database to reset.\n",
    )
