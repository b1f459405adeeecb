"""The file with settings: which one it is, and what it says."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from graphile_worker.cli.catalogue import PARTS, SETTINGS, Setting
from graphile_worker.cli.values import NotThat, from_toml
from graphile_worker.errors import ConfigurationError
from graphile_worker.trust import Trust

OWN = Path("graphile-worker.toml")
PROJECT = Path("pyproject.toml")
TABLE = "graphile-worker"

CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def config_file(given: str | None) -> Path | None:
    """The file that was named, or else the one that lies here; None if there is none."""
    if given is not None:
        return Path(given)
    if OWN.is_file():
        return OWN
    return PROJECT if PROJECT.is_file() and TABLE.encode() in _bytes(PROJECT) else None


def read_config(path: Path, *, was_named: bool, allow_unsafe: bool = False) -> dict[str, Any]:
    """The settings in a file, by their names."""
    text = _bytes(path)
    Trust(path, allow_unsafe=allow_unsafe).check("the config file")
    table: Mapping[str, Any] = _parsed(path, text)
    if path.name == PROJECT.name:
        found = _table(table, "tool", TABLE)
        if found is None and was_named:
            raise ConfigurationError(f"{path} has no table [tool.{TABLE}]")
        table = found or {}
    given: dict[str, Any] = {}
    for name, key, value in _read(table, path):
        if name in given:
            raise ConfigurationError(f"{path}: {key} is given twice, with - and with _")
        given[name] = value
    return given


def warn_of_group(given: str | None, *, allow_unsafe: bool) -> None:
    """Name the file in the log if a group may change it; for workers, as only they have a log."""
    if (path := config_file(given)) is not None:
        trust = Trust(path, allow_unsafe=allow_unsafe)
        trust.check("the config file")
        trust.warn_of_groups()


def _read(table: Mapping[str, Any], path: Path, inside: str = "") -> Iterator[tuple[str, str, Any]]:
    """The name, the key as it is written and the value of each setting."""
    for written, value in table.items():
        name, key = inside + written.replace("-", "_"), inside + written
        if name in PARTS and isinstance(value, Mapping):
            if name in SETTINGS:
                yield name, key, True
            yield from _read(value, path, f"{name}.")
        elif name in SETTINGS:
            yield name, key, _value(SETTINGS[name], key, value, path)
        elif name in PARTS:
            raise ConfigurationError(f"{path}: {key}: expected a table, got {value!r}")
        else:
            raise ConfigurationError(f"{path}: there is no setting {key}{_hint(name)}")


def _value(setting: Setting, key: str, value: Any, path: Path) -> Any:
    try:
        return from_toml(setting, value, path.parent)
    except NotThat as error:
        raise ConfigurationError(f"{path}: {key}: {error}") from None


def _hint(name: str) -> str:
    """The setting that may be meant: of that name or of that flag, and as the reference writes."""
    import difflib

    known = {each.flag[2:].replace("-", "_"): each.name for each in SETTINGS.values()}
    known |= {each: each for each in (*SETTINGS, *PARTS)}
    plain = CAPITAL.sub("_", name).lower()
    near = difflib.get_close_matches(plain, known, n=1)
    return f": is it {known[near[0]]}?" if near else "; `graphile-worker config` names all"


def _parsed(path: Path, content: bytes) -> dict[str, Any]:
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


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error


def _table(table: Mapping[str, Any], *names: str) -> Mapping[str, Any] | None:
    for name in names:
        found = table.get(name)
        if not isinstance(found, Mapping):
            return None
        table = found
    return table
