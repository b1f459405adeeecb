"""Tables of settings, by the keys of the config file."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from graphile_worker._settings.definitions import GROUPS, SETTINGS, Setting, find_similar
from graphile_worker._settings.values import InvalidValue, parse_toml
from graphile_worker._support.renamed import RENAMED_SETTINGS
from graphile_worker.errors import ConfigurationError


def read_table(table: Mapping[str, Any], where: str, folder: Path) -> dict[str, Any]:
    """Return the values of a table by the names of their settings.

    Args:
        table: The values by key. Groups are tables.
        where: What contains the table, for errors.
        folder: The folder that relative paths start from.

    Returns:
        The values, parsed.

    Raises:
        ConfigurationError: A key or a value is not valid, or a setting is set twice.
    """
    settings: dict[str, Any] = {}
    for name, key, value in _iter_values(table, where, folder):
        if name in settings:
            raise ConfigurationError(f"{where}: {key} is set twice, with - and with _. Remove one.")
        settings[name] = value
    return settings


def _iter_values(
    table: Mapping[str, Any], where: str, folder: Path, prefix: str = ""
) -> Iterator[tuple[str, str, Any]]:
    """Yield the name of each setting, its key in the table, and its value."""
    for raw_key, value in table.items():
        name, key = prefix + str(raw_key).replace("-", "_"), f"{prefix}{raw_key}"
        if name in GROUPS and isinstance(value, Mapping):
            if name in SETTINGS:
                yield name, key, True
            yield from _iter_values(value, where, folder, f"{name}.")
        elif name in SETTINGS:
            yield name, key, _parse_value(SETTINGS[name], key, value, where, folder)
        elif name in GROUPS:
            raise ConfigurationError(f"{where}: {key}: expected a table, got {value!r}")
        elif name in RENAMED_SETTINGS:
            raise ConfigurationError(f"{where}: {key} is now called {RENAMED_SETTINGS[name]}")
        else:
            similar = find_similar(name)
            hint = f"did you mean {similar.name!r}?" if similar else "see `graphile-worker config`"
            raise ConfigurationError(f"{where}: unknown setting {key!r}, {hint}")


def _parse_value(setting: Setting, key: str, value: Any, where: str, folder: Path) -> Any:
    try:
        return parse_toml(setting, value, folder)
    except InvalidValue as error:
        raise ConfigurationError(f"{where}: {key}: {error}") from None
