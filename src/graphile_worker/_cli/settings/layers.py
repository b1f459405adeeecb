"""Precedence of settings: flags over the app over environment variables over the config file."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

from graphile_worker._cli.settings.config_file import find_config_file, read_config
from graphile_worker._settings.definitions import (
    SETTINGS,
    CommandOptions,
    SettingKind,
    build_arguments,
    find_similar,
    format_variable,
)
from graphile_worker._settings.values import InvalidValue, parse_text
from graphile_worker._support.lazy_dataclass import LazyDataclass, LazyKeywordDataclass
from graphile_worker._support.renamed import RENAMED_SETTINGS
from graphile_worker.errors import ConfigurationError
from graphile_worker.options import WorkerOptions

# The two settings that name tasks. They exclude each other.
TASK_SOURCES = ("app", "tasks")

VARIABLE_PREFIX = "GRAPHILE_WORKER_"

# Variables that are not settings: one that the logs read, those that the program of an
# executable task gets, those that Kubernetes sets for a service called graphile-worker, those of
# `manage.py graphile_worker`, and the secrets of the dashboard.
IGNORED_VARIABLES = re.compile(
    VARIABLE_PREFIX + r"(DEBUG|PAYLOAD_FORMAT|TASK_IDENTIFIER"
    r"|JOB_(ID|KEY|ATTEMPTS|MAX_ATTEMPTS|PRIORITY|RUN_AT)"
    r"|SERVICE_(HOST|PORT(_\w+)?)|PORT(_[0-9]+_(TCP|UDP|SCTP)(_\w+)?)?|DJANGO_\w+"
    r"|DASHBOARD_(PASSWORD|TOKEN|SECRET))"
)


class SettingSource(StrEnum):
    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    APP = "app"
    FLAG = "flag"


class SettingValue(LazyDataclass):
    """A value and its origin: the path of the file, the name of the variable, app or flag."""

    value: Any
    source: SettingSource
    where: str


SettingLayer = Mapping[str, SettingValue]


class Settings(LazyKeywordDataclass):
    """The settings of each source by name. `config` is the path of -C."""

    file: SettingLayer
    environment: SettingLayer
    app: SettingLayer = field(default_factory=dict)
    flags: SettingLayer
    config: str | None = None

    @classmethod
    def collect(cls, flags: SettingLayer, config: str | None = None) -> "Settings":
        """Read the environment and the config file."""
        environment = dict(_read_environment())
        # A config file cannot turn off its own check.
        unsafe = flags.get("allow_unsafe_tasks") or environment.get("allow_unsafe_tasks")
        file = dict(_read_file(config, allow_unsafe=unsafe is not None and unsafe.value))
        return cls(
            file=_enable_groups(file),
            environment=_enable_groups(environment),
            flags=_enable_groups(flags),
            config=config,
        )

    def reload(self) -> "Settings":
        """Read the environment and the config file again."""
        return Settings.collect(self.flags, self.config)

    def with_app(self, app: object) -> "Settings":
        """Add the options that the code of the app sets."""
        return replace(self, app=_read_app(app, self.value("app")))

    @cached_property
    def values(self) -> dict[str, SettingValue]:
        """The value that takes precedence for each setting of a source."""
        merged: dict[str, SettingValue] = {}
        for layer in (self.file, self.environment, self.app, self.flags):
            if any(name in layer for name in TASK_SOURCES):
                merged = {name: each for name, each in merged.items() if name not in TASK_SOURCES}
            merged.update(layer)
        return merged

    def value(self, name: str) -> Any:
        return self.values[name].value if name in self.values else None

    @property
    def command_options(self) -> CommandOptions:
        return CommandOptions(**self._build_arguments(CommandOptions))

    @property
    def worker_options(self) -> WorkerOptions:
        return WorkerOptions(**self.collect_worker_options())

    def collect_worker_options(self) -> dict[str, Any]:
        """Return the arguments of WorkerOptions that a source sets."""
        return self._build_arguments(WorkerOptions)

    def _build_arguments(self, options: type) -> dict[str, Any]:
        return build_arguments(options, {name: each.value for name, each in self.values.items()})


def find_unknown_variables(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a message for each variable that looks like a setting and is not one."""
    known = {each.variable for each in SETTINGS.values()}
    for variable in sorted(environment):
        name = variable.removeprefix(VARIABLE_PREFIX)
        if name == variable or variable in known or IGNORED_VARIABLES.fullmatch(variable):
            continue
        similar = find_similar(name)
        hint = f"did you mean {similar.variable!r}?" if similar else "see `graphile-worker config`"
        yield f"ignored {variable}: unknown setting, {hint}"


def _read_file(config: str | None, *, allow_unsafe: bool) -> Iterator[tuple[str, SettingValue]]:
    if (path := find_config_file(config)) is not None:
        settings = read_config(path, is_explicit=config is not None, allow_unsafe=allow_unsafe)
        for name, value in settings.items():
            yield name, SettingValue(value, SettingSource.FILE, str(path))


def _read_environment() -> Iterator[tuple[str, SettingValue]]:
    for old, new in RENAMED_SETTINGS.items():
        if os.environ.get(variable := format_variable(old)):
            raise ConfigurationError(f"{variable} is now called {SETTINGS[new].variable}")
    for setting in SETTINGS.values():
        # An empty variable counts as not set.
        if not (text := os.environ.get(setting.variable)):
            continue
        try:
            value = parse_text(setting, text)
        except InvalidValue as error:
            raise ConfigurationError(f"{setting.variable}: {error}") from None
        yield setting.name, SettingValue(value, SettingSource.ENVIRONMENT, setting.variable)


def _read_app(app: object, path: str) -> SettingLayer:
    if app is None:
        return {}
    # Imports psycopg, which `--help` does not need.
    from graphile_worker.app import App

    if not isinstance(app, App):
        return {}
    named = app._get_worker_options()
    if app.dsn is not None:
        named["connection"] = app.dsn
    where = f"app {path}"
    return {name: SettingValue(value, SettingSource.APP, where) for name, value in named.items()}


def _enable_groups(layer: SettingLayer) -> SettingLayer:
    """Turn a group on if its source sets something in it, and reject contradictions."""
    if all(name in layer for name in TASK_SOURCES):
        raise _build_conflict_error(layer, *TASK_SOURCES)
    enabled = dict(layer)
    for name, entry in layer.items():
        if entry.value is False and SETTINGS[name].kind is SettingKind.GROUP:
            continue
        for group in SETTINGS[name].parent_groups:
            if group not in SETTINGS:
                continue
            if enabled.setdefault(group, replace(entry, value=True)).value is False:
                raise _build_conflict_error(layer, group, name)
    return enabled


def _build_conflict_error(layer: SettingLayer, *names: str) -> ConfigurationError:
    [first, second] = [layer[name] for name in names]
    both = f"{first.where} and {second.where}"
    if first.source is SettingSource.FILE:
        both = f"{first.where}: {' and '.join(names)}"
    return ConfigurationError(f"{both} exclude each other. Remove one.")
