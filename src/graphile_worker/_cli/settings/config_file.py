"""The file with settings: which one it is, and what it says."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from graphile_worker._cli.settings.definitions import GROUPS, SETTINGS, Setting
from graphile_worker._cli.settings.values import InvalidValue, parse_toml
from graphile_worker._support.renamed import RENAMED_SETTINGS
from graphile_worker._support.trust import TrustChecker
from graphile_worker.errors import ConfigurationError

CONFIG_PATH = Path("graphile-worker.toml")
PYPROJECT_PATH = Path("pyproject.toml")
PYPROJECT_TABLE = "graphile-worker"

CAMEL_CASE_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def find_config_file(config_path: str | None) -> Path | None:
    """The file that was named, or else the one that lies here; None if there is none."""
    if config_path is not None:
        return Path(config_path)
    if CONFIG_PATH.is_file():
        return CONFIG_PATH
    return (
        PYPROJECT_PATH
        if PYPROJECT_PATH.is_file() and PYPROJECT_TABLE.encode() in _read_bytes(PYPROJECT_PATH)
        else None
    )


def read_config(path: Path, *, is_explicit: bool, allow_unsafe: bool = False) -> dict[str, Any]:
    """The settings in a file, by their names."""
    text = _read_bytes(path)
    TrustChecker(path, allow_unsafe=allow_unsafe).check("the config file")
    table: Mapping[str, Any] = _parse_toml(path, text)
    if path.name == PYPROJECT_PATH.name:
        found = _find_table(table, "tool", PYPROJECT_TABLE)
        if found is None and is_explicit:
            raise ConfigurationError(f"{path} has no table [tool.{PYPROJECT_TABLE}]")
        table = found or {}
    given: dict[str, Any] = {}
    for name, key, value in _read_table(table, path):
        if name in given:
            raise ConfigurationError(f"{path}: {key} is given twice, with - and with _")
        given[name] = value
    return given


def warn_group_writable(config_path: str | None, *, allow_unsafe: bool) -> None:
    """Name the file in the log if a group may change it; for workers, as only they have a log."""
    if (path := find_config_file(config_path)) is not None:
        trust = TrustChecker(path, allow_unsafe=allow_unsafe)
        trust.check("the config file")
        trust.warn_group_writable()


def _read_table(
    table: Mapping[str, Any], path: Path, prefix: str = ""
) -> Iterator[tuple[str, str, Any]]:
    """The name, the key as it is written and the value of each setting."""
    for written, value in table.items():
        name, key = prefix + written.replace("-", "_"), prefix + written
        if name in GROUPS and isinstance(value, Mapping):
            if name in SETTINGS:
                yield name, key, True
            yield from _read_table(value, path, f"{name}.")
        elif name in SETTINGS:
            yield name, key, _parse_value(SETTINGS[name], key, value, path)
        elif name in GROUPS:
            raise ConfigurationError(f"{path}: {key}: expected a table, got {value!r}")
        elif name in RENAMED_SETTINGS:
            raise ConfigurationError(f"{path}: {key} is now called {RENAMED_SETTINGS[name]}")
        else:
            raise ConfigurationError(f"{path}: there is no setting {key}{_suggest_setting(name)}")


def _parse_value(setting: Setting, key: str, value: Any, path: Path) -> Any:
    try:
        return parse_toml(setting, value, path.parent)
    except InvalidValue as error:
        raise ConfigurationError(f"{path}: {key}: {error}") from None


def _suggest_setting(name: str) -> str:
    """The setting that may be meant: of that name or of that flag, and as the reference writes."""
    import difflib

    known = {each.flag[2:].replace("-", "_"): each.name for each in SETTINGS.values()}
    known |= {each: each for each in (*SETTINGS, *GROUPS)}
    plain = CAMEL_CASE_BOUNDARY.sub("_", name).lower()
    near = difflib.get_close_matches(plain, known, n=1)
    return f": is it {known[near[0]]}?" if near else "; `graphile-worker config` names all"


def _parse_toml(path: Path, content: bytes) -> dict[str, Any]:
    # Most workers have no file, and need not wait for the parser.
    import tomllib

    try:
        text = content.decode()
        return tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not UTF-8: {error.reason}") from error
    except tomllib.TOMLDecodeError as error:
        last = f"at line {text.count(chr(10)) + 1}, the end"
        said = str(error).replace("at end of document", last)
        raise ConfigurationError(f"{path} is not TOML: {said}") from error


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error


def _find_table(table: Mapping[str, Any], *names: str) -> Mapping[str, Any] | None:
    for name in names:
        found = table.get(name)
        if not isinstance(found, Mapping):
            return None
        table = found
    return table
