"""Settings: file under environment under app under flags.

What was given, each with where, and nothing about what holds otherwise.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from graphile_worker._cli.settings.config_file import find_config_file, read_config
from graphile_worker._cli.settings.definitions import (
    SETTINGS,
    CommandOptions,
    SettingKind,
    build_arguments,
    format_variable,
)
from graphile_worker._cli.settings.values import InvalidValue, parse_text
from graphile_worker._support.renamed import RENAMED_SETTINGS
from graphile_worker.app import App
from graphile_worker.errors import ConfigurationError
from graphile_worker.options import WorkerOptions

# Where tasks come from: one of the two.
TASK_SOURCES = ("app", "tasks")

# Skips the check of files, the config file included.
ALLOW_UNSAFE_SETTING = "allow_unsafe_tasks"


VARIABLE_PREFIX = "GRAPHILE_WORKER_"

# Variables that are not settings: those that the logs and tests read, those that the program of an
# executable task gets, and those that Kubernetes sets for a service called graphile-worker.
IGNORED_VARIABLES = re.compile(
    VARIABLE_PREFIX + r"(DEBUG|FAILPOINTS(_LOG)?|PAYLOAD_FORMAT|TASK_IDENTIFIER"
    r"|JOB_(ID|KEY|ATTEMPTS|MAX_ATTEMPTS|PRIORITY|RUN_AT)"
    r"|SERVICE_(HOST|PORT(_\w+)?)|PORT(_[0-9]+_(TCP|UDP|SCTP)(_\w+)?)?)"
)


class SettingSource(StrEnum):
    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    APP = "app"
    FLAG = "flag"


@dataclass(frozen=True, slots=True)
class SettingValue:
    """A value, and where it was given: the file, the variable, the app or the flag."""

    value: Any
    source: SettingSource
    where: str


SettingLayer = Mapping[str, SettingValue]


class Settings:
    """Whatever was given, by its name; `config` is the file that a flag names."""

    def __init__(
        self,
        *,
        file: SettingLayer,
        environment: SettingLayer,
        flags: SettingLayer,
        app: SettingLayer,
        config: str | None = None,
    ) -> None:
        self.config = config
        self._file, self._environment, self._flags = file, environment, flags
        self.values: dict[str, SettingValue] = {}
        for layer in (file, environment, app, flags):
            if any(name in layer for name in TASK_SOURCES):
                # Whoever says where tasks come from has said where they do not.
                self.values = {n: each for n, each in self.values.items() if n not in TASK_SOURCES}
            self.values.update(layer)

    @classmethod
    def collect(cls, flags: SettingLayer, config: str | None = None) -> "Settings":
        """What these flags, the environment and the file say."""
        environment = _read_environment(os.environ)
        # A file cannot vouch for itself.
        unsafe = flags.get(ALLOW_UNSAFE_SETTING) or environment.get(ALLOW_UNSAFE_SETTING)
        allow_unsafe = unsafe is not None and unsafe.value
        return cls(
            file=_enable_groups(_read_file(config, allow_unsafe=allow_unsafe)),
            environment=_enable_groups(environment),
            flags=_enable_groups(flags),
            app={},
            config=config,
        )

    def reload(self) -> "Settings":
        """What the same flags and the environment say with the file as it is now."""
        return Settings.collect(self._flags, self.config)

    def with_app(self, app: object) -> "Settings":
        """What the app says in its own code stands above file and environment."""
        layer = _read_app(app, self.value("app")) if isinstance(app, App) else {}
        return Settings(
            file=self._file,
            environment=self._environment,
            flags=self._flags,
            app=layer,
            config=self.config,
        )

    def value(self, name: str) -> Any:
        return self.values[name].value if name in self.values else None

    @property
    def command_options(self) -> CommandOptions:
        return CommandOptions(**self._build_arguments(CommandOptions))

    @property
    def worker_options(self) -> WorkerOptions:
        return WorkerOptions(**self.collect_worker_options())

    def collect_worker_options(self) -> dict[str, Any]:
        """What was given of WorkerOptions, by its names there."""
        return self._build_arguments(WorkerOptions)

    def _build_arguments(self, options: type) -> dict[str, Any]:
        return build_arguments(options, {name: each.value for name, each in self.values.items()})


def _read_file(config: str | None, *, allow_unsafe: bool) -> SettingLayer:
    path = find_config_file(config)
    if path is None:
        return {}
    found = read_config(path, is_explicit=config is not None, allow_unsafe=allow_unsafe)
    return {
        name: SettingValue(value, SettingSource.FILE, str(path)) for name, value in found.items()
    }


def _read_environment(environment: Mapping[str, str]) -> SettingLayer:
    return dict(_iter_variables(environment))


def _iter_variables(environment: Mapping[str, str]) -> Iterator[tuple[str, SettingValue]]:
    for old, new in RENAMED_SETTINGS.items():
        if environment.get(variable := format_variable(old)):
            raise ConfigurationError(f"{variable} is now called {SETTINGS[new].variable}")
    for setting in SETTINGS.values():
        # One that is empty counts as not set.
        if not (text := environment.get(setting.variable)):
            continue
        try:
            value = parse_text(setting, text)
        except InvalidValue as error:
            raise ConfigurationError(f"{setting.variable}: {error}") from None
        yield setting.name, SettingValue(value, SettingSource.ENVIRONMENT, setting.variable)


def find_unknown_variables(environment: Mapping[str, str]) -> Iterator[str]:
    """A line about each variable that is named like a setting and is not one."""
    known = {each.variable for each in SETTINGS.values()}
    for name in sorted(environment):
        if (
            name.startswith(VARIABLE_PREFIX)
            and name not in known
            and not IGNORED_VARIABLES.fullmatch(name)
        ):
            yield f"ignored {name}: there is no such setting{_suggest_variable(name)}"


def _suggest_variable(name: str) -> str:
    import difflib

    # Without what all of them have in common, which would make any two alike.
    meant = {each.flag[2:].upper().replace("-", "_"): each for each in SETTINGS.values()}
    meant |= {each.name.upper().replace(".", "_"): each for each in SETTINGS.values()}
    meant |= {each.variable.removeprefix(VARIABLE_PREFIX): each for each in SETTINGS.values()}
    near = difflib.get_close_matches(name.removeprefix(VARIABLE_PREFIX), meant, n=1)
    if not near:
        return "; `graphile-worker config` names all"
    return f", did you mean {meant[near[0]].variable}?"


def _read_app(app: App[Any], path: str) -> SettingLayer:
    named = app._get_worker_options()
    if app.dsn is not None:
        named["connection"] = app.dsn
    return {
        name: SettingValue(value, SettingSource.APP, f"app {path}") for name, value in named.items()
    }


def _enable_groups(layer: SettingLayer) -> SettingLayer:
    """With the parts that are on because something in them was given."""
    if all(name in layer for name in TASK_SOURCES):
        raise _build_conflict_error(layer, *TASK_SOURCES)
    found = dict(layer)
    for name, given in layer.items():
        if given.value is False and SETTINGS[name].kind is SettingKind.GROUP:
            continue
        for holder in SETTINGS[name].parent_groups:
            if holder not in SETTINGS:
                continue
            if found.setdefault(holder, replace(given, value=True)).value is False:
                raise _build_conflict_error(layer, holder, name)
    return found


def _build_conflict_error(layer: SettingLayer, *names: str) -> ConfigurationError:
    """One place says two things that cannot both hold."""
    [first, second] = [layer[name] for name in names]
    if first.source is SettingSource.FILE:
        words = f"{first.where}: {' and '.join(names)}"
    else:
        words = f"{first.where} and {second.where}"
    return ConfigurationError(f"{words} exclude each other")
