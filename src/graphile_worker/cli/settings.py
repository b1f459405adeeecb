"""Options that may stand before and after a subcommand; the later one wins."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from graphile_worker.options import default_schema

Command = Callable[..., Any]


@dataclass(slots=True)
class DatabaseSettings:
    """Which database and which schema the command is about."""

    connection: str | None = None
    given_schema: str | None = None

    @property
    def schema(self) -> str:
        return self.given_schema or default_schema()


def database_options(function: Command) -> Command:
    """Add -c and -s to a command; `current_settings()` has the outcome."""
    for option in (
        click.option(
            "-s",
            "--schema",
            expose_value=False,
            callback=_remember("given_schema"),
            help="Schema of the queue (default: graphile_worker).",
        ),
        click.option(
            "-c",
            "--connection",
            expose_value=False,
            callback=_remember("connection"),
            help="Database: URL, name=value pairs or a bare name (default: DATABASE_URL).",
        ),
    ):
        function = option(function)
    return function


def current_settings() -> DatabaseSettings:
    return click.get_current_context().ensure_object(DatabaseSettings)


def _remember(name: str) -> Callable[[click.Context, click.Parameter, str | None], None]:
    def remember(context: click.Context, _option: click.Parameter, value: str | None) -> None:
        if value is not None:
            setattr(context.ensure_object(DatabaseSettings), name, value)

    return remember
