"""Values of settings: parse text and TOML, and format values so that they can be parsed again."""

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

from graphile_worker._settings.definitions import Setting, SettingKind
from graphile_worker._support.durations import format_exact_duration, parse_duration
from graphile_worker.errors import ConfigurationError

OFF = "off"
BOOLEAN_WORDS = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
}

INTEGER_PATTERN = re.compile(r"-?[0-9]{1,18}")

# Kinds for which "off" cannot be a value. It can be one of a text or a path.
KINDS_WITH_OFF = (SettingKind.NUMBER, SettingKind.DURATION, SettingKind.CHOICE)


class InvalidValue(ValueError):
    """Raised for a value that its setting does not accept. The message contains both."""

    def __init__(self, setting: Setting, value: Any, hint: str = "") -> None:
        got = "" if setting.field.is_secret else f", got {_format_json(value)}"
        super().__init__(f"expected {describe_expected(setting)}{got}{hint}")


def parse_text(setting: Setting, text: str) -> Any:
    """Parse the value of a flag or an environment variable. A bare time is in milliseconds."""
    if _is_off(setting, text.lower()):
        return None
    if setting.is_toggle and text.lower() in BOOLEAN_WORDS:
        return BOOLEAN_WORDS[text.lower()]
    if setting.kind is SettingKind.LIST:
        return split_list(text)
    if INTEGER_PATTERN.fullmatch(text):
        if setting.kind is SettingKind.NUMBER:
            return _check_minimum(setting, int(text))
        if setting.kind is SettingKind.DURATION:
            return _parse_milliseconds(setting, text)
    return _parse_string(setting, text)


def parse_toml(setting: Setting, value: Any, folder: Path) -> Any:
    """Parse a value of a config file in this folder."""
    if setting.kind is SettingKind.GROUP and value == OFF:
        return False
    if setting.is_toggle and isinstance(value, bool):
        return value
    if _is_off(setting, value) or (setting.can_be_off and value is False):
        return None
    if setting.kind is SettingKind.LIST:
        return _parse_list(setting, value)
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if setting.kind is SettingKind.NUMBER and is_integer:
        return _check_minimum(setting, value)
    is_number = is_integer or isinstance(value, float) or INTEGER_PATTERN.fullmatch(str(value))
    if setting.kind is SettingKind.DURATION and is_number:
        raise InvalidValue(setting, value, f'. Add a unit, for example "{value}ms".')
    parsed = _parse_string(setting, value)
    return folder / parsed if setting.kind is SettingKind.PATH else parsed


def parse_shards(text: str) -> dict[str, str]:
    """Parse the names and addresses of shards, which are separated by spaces.

    Raises:
        ConfigurationError: An entry has no name, or two have the same.
    """
    shards: dict[str, str] = {}
    for entry in text.split():
        name, separator, address = entry.partition("=")
        if not separator or not name or not address or "/" in name:
            raise ConfigurationError("shards: expected entries NAME=URL, separated by spaces")
        if name in shards:
            raise ConfigurationError(f"shards: {name!r} occurs twice")
        shards[name] = address
    return shards


def to_json_value(setting: Setting, value: Any) -> Any:
    """Return a value for JSON and TOML without passwords: False if off, None if not set."""
    if value is None:
        return None if setting.default is None else False
    if setting.kind is SettingKind.DURATION:
        return format_exact_duration(value)
    if setting.kind is SettingKind.PATH:
        return str(value)
    if setting.kind is SettingKind.LIST:
        return list(value)
    if setting.name == "shards":
        # Addresses contain passwords, and an app has an object.
        names = parse_shards(value) if isinstance(value, str) else value.databases
        return " ".join(f"{name}=***" for name in names)
    if setting.field.is_secret:
        # Imports psycopg, which `--help` does not need.
        from graphile_worker._db.conninfo import read_conninfo_source, redact_secrets

        return redact_secrets(read_conninfo_source(value) or "")
    return value


def format_value(setting: Setting, value: Any) -> str:
    plain = to_json_value(setting, value)
    if isinstance(plain, bool):
        return "on" if plain else OFF
    if isinstance(plain, list):
        return ",".join(plain) or "-"
    return "-" if plain is None else str(plain)


def format_default(setting: Setting) -> str:
    """Format the default of a setting. Without a default, the text is empty."""
    if setting.field.default_text or setting.default is None:
        return setting.field.default_text
    return format_value(setting, setting.default)


def describe_expected(setting: Setting) -> str:
    minimum = setting.field.minimum
    expected = {
        SettingKind.TEXT: "text",
        SettingKind.PATH: "text",
        SettingKind.LIST: "a list of text",
        SettingKind.NUMBER: "a whole number" + ("" if minimum is None else f" from {minimum}"),
        SettingKind.SWITCH: "true or false",
        SettingKind.GROUP: "true or false, or a table",
        SettingKind.CHOICE: " or ".join(setting.choices),
        SettingKind.DURATION: "a duration, for example 500ms, 2s, 1m30s, 1h or 1d",
    }[setting.kind]
    return expected + (", or off" if _accepts_off(setting) else "")


def _parse_string(setting: Setting, text: Any) -> Any:
    if not isinstance(text, str):
        raise InvalidValue(setting, text)
    if setting.kind is SettingKind.TEXT:
        return text
    if setting.kind is SettingKind.PATH and text:
        return Path(text)
    if setting.kind is SettingKind.CHOICE and text in setting.choices:
        return text
    if setting.kind is SettingKind.DURATION and (duration := parse_duration(text)) is not None:
        return duration
    raise InvalidValue(setting, text)


def split_list(text: str) -> tuple[str, ...]:
    """Return the names that are separated by commas."""
    return tuple(name for each in text.split(",") if (name := each.strip()))


def _parse_list(setting: Setting, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return split_list(value)
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise InvalidValue(setting, value)
    return tuple(value)


def _accepts_off(setting: Setting) -> bool:
    return setting.can_be_off and setting.kind in KINDS_WITH_OFF


def _is_off(setting: Setting, value: Any) -> bool:
    return _accepts_off(setting) and value == OFF


def _check_minimum(setting: Setting, value: int) -> int:
    if setting.field.minimum is not None and value < setting.field.minimum:
        raise InvalidValue(setting, value)
    return value


def _parse_milliseconds(setting: Setting, text: str) -> timedelta:
    try:
        return timedelta(milliseconds=int(text))
    except OverflowError:
        raise InvalidValue(setting, text) from None


def _format_json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."
