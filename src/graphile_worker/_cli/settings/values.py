"""Values of settings: read from text or from TOML, and written so that they can be read again."""

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

from graphile_worker._cli.settings.definitions import Setting, SettingKind
from graphile_worker._db.conninfo import redact_secrets
from graphile_worker._support.durations import format_exact_duration, parse_duration

OFF = "off"
BOOLEAN_WORDS = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
}

INTEGER_PATTERN = re.compile(r"-?[0-9]{1,18}")

# Kinds of which no value is called "off"; a text or a path may be.
KINDS_WITH_OFF = (SettingKind.NUMBER, SettingKind.DURATION, SettingKind.CHOICE)


class InvalidValue(ValueError):
    """A value is not what its setting takes; the text says what is, and what was given."""

    def __init__(self, setting: Setting, value: Any, hint: str = "") -> None:
        got = "" if setting.is_secret else f", got {_format_json(value)}"
        super().__init__(f"expected {describe_expected(setting)}{got}{hint}")


def parse_text(setting: Setting, text: str) -> Any:
    """The value that a flag or a variable says; a bare number is milliseconds, if it is a time."""
    if _is_off(setting, text.lower()):
        return None
    if setting.is_toggle and text.lower() in BOOLEAN_WORDS:
        return BOOLEAN_WORDS[text.lower()]
    if setting.kind is SettingKind.DURATION and INTEGER_PATTERN.fullmatch(text):
        return _parse_milliseconds(setting, text)
    if setting.kind is SettingKind.NUMBER and INTEGER_PATTERN.fullmatch(text):
        return _check_minimum(setting, int(text))
    return _parse_string(setting, text)


def parse_toml(setting: Setting, value: Any, folder: Path) -> Any:
    """The value that a file in that folder says."""
    if setting.kind is SettingKind.GROUP and value == OFF:
        return False
    if setting.is_toggle and isinstance(value, bool):
        return value
    if _is_off(setting, value) or (setting.can_be_off and value is False):
        return None
    if setting.kind is SettingKind.NUMBER and _is_integer(value):
        return _check_minimum(setting, value)
    if setting.kind is SettingKind.DURATION and _is_unitless(value):
        hint = f'; the reference counts milliseconds: write "{value}ms"'
        raise InvalidValue(setting, value, hint)
    found = _parse_string(setting, value)
    return folder / found if setting.kind is SettingKind.PATH else found


def to_json_value(setting: Setting, value: Any) -> Any:
    """The value as JSON and TOML can hold it, without passwords: False if off, None if not set."""
    if value is None:
        return None if setting.default is None else False
    if setting.kind is SettingKind.DURATION:
        return format_exact_duration(value)
    if setting.kind is SettingKind.PATH:
        return str(value)
    return redact_secrets(value) if setting.is_secret else value


def format_value(setting: Setting, value: Any) -> str:
    plain = to_json_value(setting, value)
    if isinstance(plain, bool):
        return "on" if plain else OFF
    return "-" if plain is None else str(plain)


def describe_expected(setting: Setting) -> str:
    """What it takes, in words."""
    match setting.kind:
        case SettingKind.TEXT | SettingKind.PATH:
            plain = "text"
        case SettingKind.NUMBER:
            plain = "a whole number" + (
                "" if setting.minimum is None else f" from {setting.minimum}"
            )
        case SettingKind.SWITCH:
            return "true or false"
        case SettingKind.GROUP:
            return "true or false, or a table"
        case SettingKind.CHOICE:
            plain = " or ".join(setting.choices)
        case SettingKind.DURATION:
            plain = "a time such as 500ms, 2s, 1m30s, 1h or 1d"
    return f"{plain}, or off" if setting.can_be_off and setting.kind in KINDS_WITH_OFF else plain


def _parse_string(setting: Setting, text: Any) -> Any:
    """What is said by a text, wherever it stands."""
    if not isinstance(text, str):
        raise InvalidValue(setting, text)
    if setting.kind is SettingKind.TEXT:
        return text
    if setting.kind is SettingKind.PATH and text:
        return Path(text)
    if setting.kind is SettingKind.CHOICE and text in setting.choices:
        return text
    if setting.kind is SettingKind.DURATION and (span := parse_duration(text)) is not None:
        return span
    raise InvalidValue(setting, text)


def _is_off(setting: Setting, value: Any) -> bool:
    return setting.can_be_off and setting.kind in KINDS_WITH_OFF and value == OFF


def _check_minimum(setting: Setting, value: int) -> int:
    if setting.minimum is not None and value < setting.minimum:
        raise InvalidValue(setting, value)
    return value


def _parse_milliseconds(setting: Setting, text: str) -> timedelta:
    try:
        return timedelta(milliseconds=int(text))
    except OverflowError:
        raise InvalidValue(setting, text) from None


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_unitless(value: Any) -> bool:
    """Is it a number without a unit?"""
    if isinstance(value, str):
        return INTEGER_PATTERN.fullmatch(value) is not None
    return _is_integer(value) or isinstance(value, float)


def _format_json(value: Any) -> str:
    """As a file would have it."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."
