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
    """All tests on one Python and one PostgreSQL; further arguments go to pytest."""
    folder = _environment(session, python)
    session.run(f"{folder}/bin/pytest", "-n", "2", "--pg", str(pg), *session.posargs)


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
