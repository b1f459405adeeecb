"""The config file: find it, check who can change it, and read its settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphile_worker._settings.tables import read_table
from graphile_worker._support.trust import TrustChecker
from graphile_worker.errors import ConfigurationError

CONFIG_PATH = Path("graphile-worker.toml")
PYPROJECT_PATH = Path("pyproject.toml")
PYPROJECT_TABLE = "graphile-worker"


def find_config_file(config_path: str | None) -> Path | None:
    """Return this path, or else the config file of the current directory."""
    if config_path is not None:
        return Path(config_path)
    if CONFIG_PATH.is_file():
        return CONFIG_PATH
    if PYPROJECT_PATH.is_file() and PYPROJECT_TABLE.encode() in _read_bytes(PYPROJECT_PATH):
        return PYPROJECT_PATH
    return None


def read_config(path: Path, *, is_explicit: bool, allow_unsafe: bool = False) -> dict[str, Any]:
    """Return the settings of a config file by their names."""
    content = _read_bytes(path)
    TrustChecker(path, allow_unsafe=allow_unsafe).check("the config file")
    table: Any = _parse_toml(path, content)
    if path.name == PYPROJECT_PATH.name:
        for name in ("tool", PYPROJECT_TABLE):
            table = table.get(name) if isinstance(table, Mapping) else None
        if is_explicit and not isinstance(table, Mapping):
            raise ConfigurationError(
                f"{path} has no table [tool.{PYPROJECT_TABLE}]. Add it, or pass another file."
            )
    return read_table(table if isinstance(table, Mapping) else {}, str(path), path.parent)


def warn_group_writable(config_path: str | None, *, allow_unsafe: bool) -> None:
    """Log a warning if a group can change the config file. Only workers have a log."""
    if (path := find_config_file(config_path)) is not None:
        trust = TrustChecker(path, allow_unsafe=allow_unsafe)
        trust.check("the config file")
        trust.warn_group_writable()


def _parse_toml(path: Path, content: bytes) -> dict[str, Any]:
    # Imported for a config file only, as most workers have none.
    import tomllib

    try:
        text = content.decode()
        return tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not UTF-8: {error.reason}") from error
    except tomllib.TOMLDecodeError as error:
        end = f"at line {text.count(chr(10)) + 1}, the end"
        message = str(error).replace("at end of document", end)
        raise ConfigurationError(f"{path} is not TOML: {message}") from error


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
