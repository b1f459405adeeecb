"""`graphile-worker init`: write a first worker, its tests, and a database for development."""

import os
import shlex
from importlib.resources import files
from pathlib import Path

import click

from graphile_worker._support.error_format import make_printable
from graphile_worker.errors import ConfigurationError

TEMPLATES = files("graphile_worker._cli") / "templates"
# So that no tool takes the templates for modules or tests of the package.
TEMPLATE_SUFFIX = ".txt"
FILE_NAMES = ("worker.py", "test_worker.py", "compose.yaml")

NEXT_COMMANDS = (
    "docker compose up --detach --wait",
    "graphile-worker --app worker",
    """graphile-worker add --app worker send_email '{"to": "ada@example.com"}'""",
)


@click.command()
@click.argument("folder", default=".", type=click.Path(file_okay=False, path_type=Path))
def init(folder: Path) -> None:
    """Write a first worker with tests and a database.

    Creates worker.py, test_worker.py and compose.yaml in FOLDER (default: the current folder).
    Existing files are never overwritten.
    """
    try:
        _write_files(folder)
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be written: {error.strerror}.") from error
    first, run_worker, add_job = NEXT_COMMANDS
    if folder != Path("."):
        first = f"cd {shlex.quote(str(folder))} && {first}"
    click.echo(
        f"created {', '.join(make_printable(folder / name) for name in FILE_NAMES)}\n\n"
        f"Start a database, or set DATABASE_URL to yours:\n  {make_printable(first)}\n"
        f"Run the worker:\n  {run_worker}\n"
        f"Add a job, in another terminal:\n  {add_job}"
    )


def _write_files(folder: Path) -> None:
    # A broken link counts as well, as writing would create its target.
    if existing := [name for name in FILE_NAMES if os.path.lexists(folder / name)]:
        raise ConfigurationError(
            f"{folder.absolute()} already has {', '.join(existing)}; nothing was written. "
            "Name another folder: graphile-worker init FOLDER"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILE_NAMES:
        content = (TEMPLATES / f"{name}{TEMPLATE_SUFFIX}").read_bytes()
        with (folder / name).open("xb") as file:
            file.write(content)
