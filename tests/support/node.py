"""Graphile Worker for Node: the npm package on Node."""

import subprocess
from pathlib import Path

from tests.support.tools import NODE, node_cli


def node_worker(
    version: str, url: str, *args: str, schema: str | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the reference's command to its end: "0.16", "0.17" or "0.18"."""
    command = node_command(version, url, *args, schema=schema)
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd or "/", timeout=60)


def node_command(version: str, url: str, *args: str, schema: str | None = None) -> list[str]:
    chosen = ["--schema", schema] if schema is not None else []
    return [str(NODE), str(node_cli(version)), "-c", url, *chosen, *args]


def node_install(url: str, *, version: str = "0.18", schema: str | None = None) -> None:
    """Let the reference install or upgrade its schema."""
    done = node_worker(version, url, "--schema-only", schema=schema)
    # On a busy machine the command may say so and still exit with 1: it allows itself one second
    # to leave.
    assert "Schema updated" in done.stdout, done.stdout + done.stderr
