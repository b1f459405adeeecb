"""The whole matrix by one command: `nox`; one cell: `nox -s "tests(python='3.12', pg=14)"`.

`nox -s django` runs the matrix of Django.
"""

import subprocess
import sys

import nox

nox.options.default_venv_backend = "uv"
nox.options.error_on_missing_interpreters = False

PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
SERVERS = [14, 15, 16, 17, 18]

# Each release of Django, and the Python to test it with.
DJANGOS = {"5.2": "3.11", "6.0": "3.12", "6.1": "3.14"}
# The oldest PostgreSQL that each supports.
OLDEST_PG = {"5.2": 14, "6.0": 14, "6.1": 15}

# Most tests wait most of the time: four at once keep two cores busy.
BESIDE = ("-n", "4", "--dist", "worksteal")


@nox.session(venv_backend="none")
@nox.parametrize("pg", SERVERS)
@nox.parametrize("python", PYTHONS)
def tests(session: nox.Session, python: str, pg: int) -> None:
    """The gate's tests on one Python and one PostgreSQL; further arguments go to pytest."""
    folder = _environment(session, python)
    session.run(f"{folder}/bin/pytest", *BESIDE, "--pg", str(pg), *session.posargs)


@nox.session(venv_backend="none", default=False)
def units(session: nox.Session) -> None:
    """The tests that need neither PostgreSQL nor Node, on the Python that runs nox."""
    folder = f".nox/units-{sys.version_info[0]}.{sys.version_info[1]}"
    _install(session, sys.executable, folder)
    programs = "Scripts" if sys.platform == "win32" else "bin"
    session.run(f"{folder}/{programs}/pytest", *BESIDE, "tests/unit", *session.posargs)


@nox.session(venv_backend="none", default=False)
def lowest(session: nox.Session) -> None:
    """The tests on the oldest releases of the dependencies that are allowed, on Python 3.11."""
    folder = ".nox/lowest"
    session.run("tools/lowest", folder)
    given = session.posargs or ["tests/unit", "tests/db", "tests/integrations"]
    session.run(f"{folder}/bin/pytest", *BESIDE, *given)


@nox.session(venv_backend="none", default=False)
@nox.parametrize("django, pg", [(name, pg) for name in DJANGOS for pg in (OLDEST_PG[name], 18)])
def django(session: nox.Session, django: str, pg: int) -> None:
    """The tests of Django on one of its releases and one PostgreSQL, at their nightly sizes."""
    python = DJANGOS[django]
    folder = _environment(session, python, f".nox/django-{django}")
    session.run("uv", "pip", "install", "-q", "--python", folder, f"django~={django}.0")
    given = session.posargs or ["tests/integrations/django"]
    command = (f"{folder}/bin/pytest", "-n", "2", "--tier", "nightly", "--pg", str(pg))
    # What compares times runs in the nightly tier, alone.
    session.run(*command, "-m", "not serial", *given)


def _environment(session: nox.Session, python: str, folder: str | None = None) -> str:
    # Version managers put shims on the path that resolvers trip over: ask our own finder.
    found = subprocess.run(["tools/python", python], capture_output=True, text=True)
    if found.returncode:
        session.skip(f"Python {python} is not on this machine")
    folder = folder or f".nox/python-{python}"
    _install(session, found.stdout.strip(), folder)
    return folder


def _install(session: nox.Session, python: str, folder: str) -> None:
    session.run("uv", "venv", "-q", "--allow-existing", "--python", python, folder)
    install = ("uv", "pip", "install", "-q", "--python", folder)
    session.run(*install, "--require-hashes", "-r", "requirements-dev.txt")
    session.run(*install, "--no-deps", "-e", ".")
