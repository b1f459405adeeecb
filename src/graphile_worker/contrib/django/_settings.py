"""The setting GRAPHILE_WORKER of a Django project: read, checked and completed with defaults."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, get_args

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from graphile_worker._support.durations import format_exact_duration
from graphile_worker._support.text import suggest
from graphile_worker.errors import ConfigurationError
from graphile_worker.options import NotifyMode, default_schema
from graphile_worker.results import Retention

SETTING_NAME = "GRAPHILE_WORKER"
WORKER_KEY = f"{SETTING_NAME}['WORKER']"

# Settings of a worker that a Django project sets in another way.
RESERVED_SETTINGS = {
    "connection": "Set DATABASE or WORKER_DATABASE instead.",
    "schema": "Set SCHEMA instead.",
    "ext_schema": "Its name is that of SCHEMA with the suffix _ext.",
    "app": "Tasks are imported from the installed apps: set TASKS_MODULE or IMPORTS.",
    "tasks": "Tasks are imported from the installed apps: set TASKS_MODULE or IMPORTS.",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueSettings:
    """The values of the setting, by their names in lower case."""

    database: str = "default"
    """Alias of the database that has the queue."""
    worker_database: str | None = None
    """Alias by which workers connect, for example past PgBouncer. None for the same."""
    schema: str = field(default_factory=default_schema)
    """Schema of Graphile Worker."""
    tasks_module: str | None = "tasks"
    """Module with tasks, imported from every installed app. None for nothing."""
    imports: Sequence[str] = ()
    """Further modules with tasks."""
    worker: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `graphile-worker`, by the keys of its config file."""
    retention: Retention | None = None
    """What tasks keep of ended jobs, unless they have their own."""
    notify: NotifyMode = "on_commit"
    """When workers are notified of added jobs: at the commit, soon after it, or never."""
    admin: bool = True
    """Whether the admin has pages for the queue."""
    migrate: bool = True
    """Whether `manage.py migrate` installs and upgrades the schema. If not, it only checks it."""


_TYPES: Mapping[str, tuple[type[Any], ...]] = {
    "database": (str,),
    "worker_database": (str, type(None)),
    "schema": (str,),
    "tasks_module": (str, type(None)),
    "imports": (list, tuple),
    "worker": (dict,),
    "retention": (Retention, type(None)),
    "notify": (str,),
    "admin": (bool,),
    "migrate": (bool,),
}


@cache
def get_settings() -> QueueSettings:
    """Return the values of the setting.

    Raises:
        ImproperlyConfigured: A key or a value is not valid, or Django has no settings.
    """
    if problems := find_problems():
        raise ImproperlyConfigured(" ".join(problems))
    return QueueSettings(**{name.lower(): value for name, value in _read().items()})


def find_problems() -> list[str]:
    """Return a sentence for each key and value that is not valid."""
    values = _read()
    if not isinstance(values, Mapping):
        return [f"{SETTING_NAME} must be a dict, got {values!r}."]
    known = [each.name.upper() for each in fields(QueueSettings)]
    problems = []
    for name, value in values.items():
        if name not in known:
            problems.append(
                f"{SETTING_NAME} has an unknown key {name!r}{suggest(str(name), known)}"
            )
        elif not isinstance(value, _TYPES[name.lower()]):
            expected = " or ".join(each.__name__ for each in _TYPES[name.lower()])
            problems.append(f"{SETTING_NAME}[{name!r}] must be of type {expected}, got {value!r}.")
        elif name == "NOTIFY" and value not in get_args(NotifyMode):
            expected = ", ".join(get_args(NotifyMode))
            problems.append(f"{SETTING_NAME}[{name!r}] must be one of {expected}, got {value!r}.")
        elif name == "WORKER":
            problems += _find_worker_problems(value) if value else ()
    return problems


def build_worker_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of WORKER as environment variables, without those that are set.

    Args:
        environment: The environment, which takes precedence.

    Returns:
        The variables to add.
    """
    # Imported here, because every process of Django imports this module.
    from graphile_worker._settings.definitions import SETTINGS
    from graphile_worker._settings.values import format_value

    values = _read_worker_table(get_settings().worker)
    added: dict[str, str] = {}
    for name, value in values.items():
        setting = SETTINGS[name]
        if _is_set(setting.variable, environment) or _is_overridden(name, value, environment):
            continue
        if value is not None or setting.default is not None:
            added[setting.variable] = format_value(setting, value)
    return added


def _find_worker_problems(table: Mapping[str, Any]) -> Iterator[str]:
    try:
        values = _read_worker_table(table)
    except ConfigurationError as error:
        yield f"{error}."
        return
    for name in values:
        if name in RESERVED_SETTINGS:
            yield f"{WORKER_KEY} cannot set {name!r}. {RESERVED_SETTINGS[name]}"


def _read_worker_table(table: Mapping[str, Any]) -> dict[str, Any]:
    from graphile_worker._settings.tables import read_table

    # Relative paths start from the current directory, as those of environment variables do.
    return read_table(_to_plain(table), WORKER_KEY, Path())


def _to_plain(value: Any) -> Any:
    """Return the value as a config file has it."""
    match value:
        case Mapping():
            return {str(key): _to_plain(each) for key, each in value.items()}
        case timedelta():
            return format_exact_duration(value)
        case Path():
            return str(value)
        case None:
            return False
        case _:
            return value


def _is_set(variable: str, environment: Mapping[str, str]) -> bool:
    # An empty variable counts as not set.
    return bool(environment.get(variable))


def _is_overridden(name: str, value: Any, environment: Mapping[str, str]) -> bool:
    """Return whether the environment turns a group off that the setting is in, or the reverse."""
    from graphile_worker._settings.definitions import SETTINGS
    from graphile_worker._settings.values import BOOLEAN_WORDS

    setting = SETTINGS[name]
    if value is False and any(
        _is_set(each.variable, environment)
        for each in SETTINGS.values()
        if name in each.parent_groups
    ):
        return True
    groups = [SETTINGS[group].variable for group in setting.parent_groups if group in SETTINGS]
    words = (environment.get(variable, "").lower() for variable in groups)
    return any(BOOLEAN_WORDS.get(word) is False for word in words)


def _read() -> Any:
    return getattr(settings, SETTING_NAME, {})


def _forget(*, setting: str, **_: object) -> None:
    if setting == SETTING_NAME:
        get_settings.cache_clear()


setting_changed.connect(_forget, dispatch_uid="graphile_worker.settings")
