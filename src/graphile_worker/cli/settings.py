"""Settings: file under environment under app under flags.

What was given, each with where, and nothing about what holds otherwise.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from graphile_worker.app import App
from graphile_worker.cli.catalogue import SETTINGS, CommandOptions, Kind, arguments
from graphile_worker.cli.config_file import config_file, read_config
from graphile_worker.cli.values import NotThat, from_text
from graphile_worker.errors import ConfigurationError
from graphile_worker.options import WorkerOptions

# Where tasks come from: one of the two.
TASK_SOURCES = ("app", "tasks")

# Skips the check of files, the config file included.
UNSAFE = "allow_unsafe_tasks"


PREFIX = "GRAPHILE_WORKER_"

# Variables that are not settings: those that the logs and tests read, those that the program of an
# executable task gets, and those that Kubernetes sets for a service called graphile-worker.
NOT_SETTINGS = re.compile(
    PREFIX + r"(DEBUG|FAILPOINTS(_LOG)?|PAYLOAD_FORMAT|TASK_IDENTIFIER"
    r"|JOB_(ID|KEY|ATTEMPTS|MAX_ATTEMPTS|PRIORITY|RUN_AT)"
    r"|SERVICE_(HOST|PORT(_\w+)?)|PORT(_[0-9]+_(TCP|UDP|SCTP)(_\w+)?)?)"
)


class Source(StrEnum):
    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    APP = "app"
    FLAG = "flag"


@dataclass(frozen=True, slots=True)
class Given:
    """A value, and where it was given: the file, the variable, the app or the flag."""

    value: Any
    source: Source
    where: str


Layer = Mapping[str, Given]


class Settings:
    """Whatever was given, by its name; `config` is the file that a flag names."""

    def __init__(
        self,
        *,
        file: Layer,
        environment: Layer,
        flags: Layer,
        app: Layer,
        config: str | None = None,
    ) -> None:
        self.config = config
        self._file, self._environment, self._flags = file, environment, flags
        self.given: dict[str, Given] = {}
        for layer in (file, environment, app, flags):
            if any(name in layer for name in TASK_SOURCES):
                # Whoever says where tasks come from has said where they do not.
                self.given = {n: each for n, each in self.given.items() if n not in TASK_SOURCES}
            self.given.update(layer)

    @classmethod
    def collected(cls, flags: Layer, config: str | None = None) -> "Settings":
        """What these flags, the environment and the file say."""
        environment = _from_environment(os.environ)
        # A file cannot vouch for itself.
        unsafe = flags.get(UNSAFE) or environment.get(UNSAFE)
        allow_unsafe = unsafe is not None and unsafe.value
        return cls(
            file=_complete(_from_file(config, allow_unsafe=allow_unsafe)),
            environment=_complete(environment),
            flags=_complete(flags),
            app={},
            config=config,
        )

    def again(self) -> "Settings":
        """What the same flags and the environment say with the file as it is now."""
        return Settings.collected(self._flags, self.config)

    def with_app(self, app: object) -> "Settings":
        """What the app says in its own code stands above file and environment."""
        layer = _from_app(app, self.value("app")) if isinstance(app, App) else {}
        return Settings(
            file=self._file,
            environment=self._environment,
            flags=self._flags,
            app=layer,
            config=self.config,
        )

    def value(self, name: str) -> Any:
        return self.given[name].value if name in self.given else None

    @property
    def command(self) -> CommandOptions:
        return CommandOptions(**self._arguments(CommandOptions))

    @property
    def options(self) -> WorkerOptions:
        return WorkerOptions(**self.given_options())

    def given_options(self) -> dict[str, Any]:
        """What was given of WorkerOptions, by its names there."""
        return self._arguments(WorkerOptions)

    def _arguments(self, options: type) -> dict[str, Any]:
        return arguments(options, {name: each.value for name, each in self.given.items()})


def _from_file(config: str | None, *, allow_unsafe: bool) -> Layer:
    path = config_file(config)
    if path is None:
        return {}
    found = read_config(path, was_named=config is not None, allow_unsafe=allow_unsafe)
    return {name: Given(value, Source.FILE, str(path)) for name, value in found.items()}


def _from_environment(environment: Mapping[str, str]) -> Layer:
    return dict(_variables(environment))


def _variables(environment: Mapping[str, str]) -> Iterator[tuple[str, Given]]:
    for setting in SETTINGS.values():
        # One that is empty counts as not set.
        if not (text := environment.get(setting.variable)):
            continue
        try:
            value = from_text(setting, text)
        except NotThat as error:
            raise ConfigurationError(f"{setting.variable}: {error}") from None
        yield setting.name, Given(value, Source.ENVIRONMENT, setting.variable)


def unknown_variables(environment: Mapping[str, str]) -> Iterator[str]:
    """A line about each variable that is named like a setting and is not one."""
    known = {each.variable for each in SETTINGS.values()}
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in known and not NOT_SETTINGS.fullmatch(name):
            yield f"ignored {name}: there is no such setting{_nearest(name)}"


def _nearest(name: str) -> str:
    import difflib

    # Without what all of them have in common, which would make any two alike.
    meant = {each.flag[2:].upper().replace("-", "_"): each for each in SETTINGS.values()}
    meant |= {each.name.upper().replace(".", "_"): each for each in SETTINGS.values()}
    meant |= {each.variable.removeprefix(PREFIX): each for each in SETTINGS.values()}
    near = difflib.get_close_matches(name.removeprefix(PREFIX), meant, n=1)
    if not near:
        return "; `graphile-worker config` names all"
    return f", did you mean {meant[near[0]].variable}?"


def _from_app(app: App[Any], path: str) -> Layer:
    named = app.named_options()
    if app.dsn is not None:
        named["connection"] = app.dsn
    return {name: Given(value, Source.APP, f"app {path}") for name, value in named.items()}


def _complete(layer: Layer) -> Layer:
    """With the parts that are on because something in them was given."""
    if all(name in layer for name in TASK_SOURCES):
        raise _exclude(layer, *TASK_SOURCES)
    found = dict(layer)
    for name, given in layer.items():
        if given.value is False and SETTINGS[name].kind is Kind.PART:
            continue
        for holder in SETTINGS[name].holders:
            if holder not in SETTINGS:
                continue
            if found.setdefault(holder, replace(given, value=True)).value is False:
                raise _exclude(layer, holder, name)
    return found


def _exclude(layer: Layer, *names: str) -> ConfigurationError:
    """One place says two things that cannot both hold."""
    [first, second] = [layer[name] for name in names]
    if first.source is Source.FILE:
        words = f"{first.where}: {' and '.join(names)}"
    else:
        words = f"{first.where} and {second.where}"
    return ConfigurationError(f"{words} exclude each other")
