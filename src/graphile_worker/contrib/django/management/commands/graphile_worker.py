"""`manage.py graphile_worker`: run a worker, or a subcommand of `graphile-worker`."""

import os
import runpy
import site
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, connections

from graphile_worker.contrib.django._app import app_for
from graphile_worker.contrib.django._arguments import Arguments
from graphile_worker.contrib.django._schema_check import find_schema_problem
from graphile_worker.contrib.django._settings import (
    SETTING_NAME,
    build_worker_environment,
    get_settings,
)
from graphile_worker.contrib.django.worker import DATABASE_VARIABLE, SELECTION_VARIABLE
from graphile_worker.errors import ConfigurationError

APP = "graphile_worker.contrib.django.worker:app"
CONFIG_FILES = {"graphile-worker.toml": "", "pyproject.toml": "[tool.graphile-worker"}


class Command(BaseCommand):
    """Runs `graphile-worker` with the database, the tasks and the settings of the project."""

    help = (
        "Run a worker with the tasks of the installed apps, or a subcommand of graphile-worker, "
        "for example `jobs list` or `doctor`. All other flags are those of graphile-worker: see "
        "`manage.py graphile_worker --help`."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Describe the flags of this command for `manage.py help`."""
        parser.add_argument("--database", metavar="ALIAS", help="Database of the queue.")
        for flag, text in (
            ("--only", "Run only these tasks; repeatable."),
            ("--except", "Run all tasks except these; repeatable."),
            ("--queue", "Run only tasks of this queue of django.tasks; repeatable."),
            ("--exclude-queue", "Do not run tasks of this queue; repeatable."),
        ):
            parser.add_argument(flag, action="append", metavar=flag[2:].upper(), help=text)

    def run_from_argv(self, argv: list[str]) -> None:
        """Prepare the environment, then become `graphile-worker`."""
        try:
            arguments = Arguments.parse(argv[2:])
            environment = self._prepare(arguments)
        except (CommandError, ConfigurationError, ImproperlyConfigured, DatabaseError) as error:
            if "--traceback" in argv:
                raise
            self.stderr.write(f"{type(error).__name__}: {error}")
            sys.exit(getattr(error, "returncode", 1))
        finally:
            connections.close_all()
        if arguments.rest in (["-h"], ["--help"]):
            self.stdout.write(self.create_parser(Path(argv[0]).name, argv[1]).format_help())
            self.stdout.flush()
        _run(arguments.rest, environment)

    def handle(self, *args: Any, **options: Any) -> None:
        """Reject `call_command`, which would replace the program that calls it."""
        raise CommandError("run `manage.py graphile_worker` as a program.")

    def _prepare(self, arguments: Arguments) -> dict[str, str]:
        """Check the project, and return the environment of the worker."""
        settings = get_settings()
        alias = arguments.database or settings.database
        if alias not in connections.settings:
            raise CommandError(
                f"no database {alias!r} in DATABASES. Known: {', '.join(connections.settings)}"
            )
        if django_settings.SETTINGS_MODULE is None:
            raise CommandError("a worker needs a settings module: set DJANGO_SETTINGS_MODULE.")
        _reject_config_file(arguments.rest)
        environment = dict(os.environ)
        environment |= build_worker_environment(environment)
        if (selection := arguments.selection) is not None:
            selection = selection.take_variables(environment)
            selection.apply(app_for(alias))
        if arguments.runs_worker and "--skip-checks" not in arguments.switches:
            self.check()
            if (problem := find_schema_problem(alias)) is not None:
                raise CommandError(". ".join(filter(None, problem)))
        environment["DJANGO_SETTINGS_MODULE"] = django_settings.SETTINGS_MODULE
        environment["GRAPHILE_WORKER_APP"] = APP
        environment[DATABASE_VARIABLE] = alias
        environment["PYTHONPATH"] = os.pathsep.join(_list_python_path())
        environment.pop(SELECTION_VARIABLE, None)
        if selection is not None:
            environment[SELECTION_VARIABLE] = selection.to_text()
        if "--no-color" in arguments.switches:
            environment["NO_COLOR"] = "1"
        return environment


def _reject_config_file(rest: list[str]) -> None:
    """Reject the config file that `graphile-worker` would read in the current directory."""
    if any(each.startswith(("-C", "--config")) for each in rest):
        return
    for name, table in CONFIG_FILES.items():
        path = Path(name)
        if path.is_file() and table in path.read_text(encoding="utf-8", errors="replace"):
            what = f"the table {table}] of {name}" if table else name
            raise CommandError(
                f"{what} is not used in a Django project: two places for one setting would "
                f"disagree. Move its settings to {SETTING_NAME}['WORKER'] and remove it."
            )


def _list_python_path() -> list[str]:
    """Return the folders on the path of this program that a new interpreter would not have."""
    installed = [
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *site.getsitepackages(),
        site.getusersitepackages(),
    ]
    return [
        str(Path(each).absolute())
        for each in sys.path
        if not each.endswith(".zip") and not any(Path(each).is_relative_to(p) for p in installed)
    ]


def _run(arguments: list[str], environment: dict[str, str]) -> None:
    """Replace this process, so that signals, probes and the process id are those of a worker."""
    if sys.platform == "win32":
        os.environ.update(environment)
        sys.argv = ["graphile-worker", *arguments]
        runpy.run_module("graphile_worker", run_name="__main__", alter_sys=True)
        return
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    command = [sys.executable, *flags, "-m", "graphile_worker", *arguments]
    os.execve(sys.executable, command, environment)
