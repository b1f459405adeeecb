"""The page on the libpq of the system: a worker runs without the binary package of psycopg."""

import re
import shlex
import shutil
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.packaging.closure import installed
from tests.support.processes import Programs
from tests.support.sql import Sql
from tests.support.wheel import ROOT, run

pytestmark = pytest.mark.single_version

PAGE = (ROOT / "docs/operations/systemd.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## Use the system's libpq\n")[2].partition("\n## ")[0]
ENVIRONMENT = "/srv/shop/.venv"
PSYCOPG = "psycopg[c]>=3.2.4"


def commands() -> list[str]:
    """The lines of the page that a shell runs, in order."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)
    whole = "".join(blocks).replace("\\\n", "")
    return whole.splitlines()


def test_the_page_names_every_dependency_and_another_form_of_psycopg():
    [line] = [line for line in commands() if "pip install" in line and "--no-deps" not in line]
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    named = {each.name: each for each in map(Requirement, shlex.split(line)[2:])}

    for each in map(Requirement, declared):
        assert named.pop(each.name).specifier == each.specifier
    assert named == {}
    assert f'"{PSYCOPG}"' in line
    assert f'override-dependencies = ["{PSYCOPG}"]' in SECTION


@pytest.mark.nightly
def test_the_override_of_the_page_leaves_the_binary_package_out_of_a_lock(
    wheel: Path, tmp_path: Path
):
    [override] = re.findall(r"^```toml\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)
    project = f"""\
[project]
name = "shop"
version = "1"
requires-python = ">=3.11"
dependencies = ["graphile-worker @ {wheel.as_uri()}"]
"""
    for added, driver in [("", "psycopg-binary"), (override, "psycopg-c")]:
        (tmp_path / "pyproject.toml").write_text(project + added)
        said = run("uv", "pip", "compile", "-q", "--no-header", "pyproject.toml", cwd=tmp_path)
        names = {line.partition("==")[0] for line in said.splitlines() if "==" in line}
        assert names & {"psycopg-binary", "psycopg-c"} == {driver}


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_worker_runs_with_a_psycopg_built_against_the_libpq_of_the_system(
    wheel: Path, programs: Programs, sql: Sql, tmp_path: Path, record_property
):
    for program in ("gcc", "pg_config", "python3"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not on this machine")
    include = run("python3", "-c", "import sysconfig; print(sysconfig.get_path('include'))")
    if not Path(include.strip(), "Python.h").exists():
        pytest.skip("the headers of Python are not on this machine")
    folder = tmp_path / "env"

    packages, *others = commands()
    assert packages.startswith("apt-get install ")
    for line in others:
        here = line.replace(ENVIRONMENT, str(folder))
        said = run("sh", "-ec", here.replace("--no-deps graphile-worker", f"--no-deps {wheel}"))
    programs.write("tasks/hello.py", "async def task(payload): print('hello', flush=True)\n")
    sql.run("select :schema.add_job('hello')")
    command = [str(folder / "bin/graphile-worker"), "--once"]
    worker = programs.start(command, {"PSYCOPG_IMPL": "c", "PYTHONPATH": None})

    implementation, version = said.split()
    assert implementation == "c"
    assert "psycopg-binary" not in installed(folder / "bin/python")
    assert worker.end() == 0, worker.err
    assert worker.out == "hello\n"
    record_property("figure", f"a worker on psycopg built against libpq {version} of the system")
