"""The whole matrix by one command: `nox`; one cell: `nox -s "tests(python='3.12', pg=14)"`."""

import subprocess

import nox

nox.options.default_venv_backend = "uv"
nox.options.error_on_missing_interpreters = False

PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
SERVERS = [14, 15, 16, 17, 18]


@nox.session(venv_backend="none")
@nox.parametrize("pg", SERVERS)
@nox.parametrize("python", PYTHONS)
def tests(session: nox.Session, python: str, pg: int) -> None:
    """All tests but `serial` on one Python and one PostgreSQL; further arguments go to pytest."""
    folder = _environment(session, python)
    beside = ("-n", "2", "-m", "not serial")
    session.run(f"{folder}/bin/pytest", *beside, "--pg", str(pg), *session.posargs)


@nox.session(venv_backend="none", default=False)
def lowest(session: nox.Session) -> None:
    """The tests on the oldest releases of the dependencies that are allowed, on Python 3.11."""
    folder = ".nox/lowest"
    session.run("tools/lowest", folder)
    given = session.posargs or ["tests/unit", "tests/db", "tests/integrations"]
    session.run(f"{folder}/bin/pytest", "-n", "2", *given)


def _environment(session: nox.Session, python: str) -> str:
    # Version managers put shims on the path that resolvers trip over: ask our own finder.
    found = subprocess.run(["tools/python", python], capture_output=True, text=True)
    if found.returncode:
        session.skip(f"Python {python} is not on this machine")
    folder = f".nox/python-{python}"
    session.run("uv", "venv", "-q", "--allow-existing", "--python", found.stdout.strip(), folder)
    install = ("uv", "pip", "install", "-q", "--python", folder)
    session.run(*install, "--require-hashes", "-r", "requirements-dev.txt")
    session.run(*install, "--no-deps", "-e", ".")
    return folder
