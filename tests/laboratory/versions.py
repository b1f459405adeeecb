"""Versions of the library: this one, and older ones from the history of the repository."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = "src"

# The present folder, and the former one.
MIGRATIONS = [f"{SOURCE}/graphile_worker/{each}/ext/0*.sql" for each in ("_sql", "sql")]


def commit_of(revision: str) -> str:
    """Return the short hash of a revision; "" if this clone does not contain it."""
    return _git(
        "rev-parse", "--verify", "--quiet", "--short", f"{revision}^{{commit}}", check=False
    )


def before_the_last_migration() -> str:
    """Return the commit before the one that added the newest migration; "" if it is missing."""
    added = ["log", "-M", "--diff-filter=A", "-1", "--format=%h", "--", *MIGRATIONS]
    newest = _git(*added, check=False)
    return commit_of(f"{newest}^") if newest else ""


def unpack(commit: str, folder: Path) -> Path:
    """Unpack the library at a commit, and return its folder for PYTHONPATH."""
    folder.mkdir(parents=True, exist_ok=True)
    packed = folder / "source.tar"
    _git("archive", f"--output={packed}", commit, SOURCE)
    subprocess.run(["tar", "xf", packed, "-C", folder], check=True)
    return folder / SOURCE


def lease_flag(source: Path) -> str:
    """Return the flag for the lease duration in the version of that folder."""
    has_new_names = (source / "graphile_worker/_cli").is_dir()
    return "--lease-duration" if has_new_names else "--recovery-threshold"


def migrate(dsn: str, schema: str, source: Path) -> None:
    """Install or upgrade the schema with the version of that folder."""
    command = [sys.executable, "-m", "graphile_worker", "--schema-only", "-s", schema, "-c", dsn]
    variables = {**os.environ, "PYTHONPATH": str(source)}
    subprocess.run(command, env=variables, check=True, capture_output=True, text=True)


def _git(*arguments: str, check: bool = True) -> str:
    command = ["git", *arguments]
    return subprocess.run(
        command, cwd=ROOT, check=check, stdout=subprocess.PIPE, text=True
    ).stdout.strip()
