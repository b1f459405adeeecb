"""Values of settings: read from text or from TOML, and written so that they can be read again."""

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

from graphile_worker.cli.catalogue import Kind, Setting
from graphile_worker.db.conninfo import without_secrets
from graphile_worker.durations import duration_text, read_duration

OFF = "off"
WORDS = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
}

WHOLE = re.compile(r"-?[0-9]{1,18}")

# Kinds of which no value is called "off"; a text or a path may be.
SAY_OFF = (Kind.NUMBER, Kind.DURATION, Kind.CHOICE)


class NotThat(ValueError):
    """A value is not what its setting takes; the text says what is, and what was given."""

    def __init__(self, setting: Setting, value: Any, hint: str = "") -> None:
        got = "" if setting.is_secret else f", got {_quoted(value)}"
        super().__init__(f"expected {expected(setting)}{got}{hint}")


def from_text(setting: Setting, text: str) -> Any:
    """The value that a flag or a variable says; a bare number is milliseconds, if it is a time."""
    if _says_off(setting, text.lower()):
        return None
    if setting.is_switched and text.lower() in WORDS:
        return WORDS[text.lower()]
    if setting.kind is Kind.DURATION and WHOLE.fullmatch(text):
        return _milliseconds(setting, text)
    if setting.kind is Kind.NUMBER and WHOLE.fullmatch(text):
        return _number(setting, int(text))
    return _worded(setting, text)


def from_toml(setting: Setting, value: Any, folder: Path) -> Any:
    """The value that a file in that folder says."""
    if setting.kind is Kind.PART and value == OFF:
        return False
    if setting.is_switched and isinstance(value, bool):
        return value
    if _says_off(setting, value) or (setting.may_be_off and value is False):
        return None
    if setting.kind is Kind.NUMBER and _is_whole(value):
        return _number(setting, value)
    if setting.kind is Kind.DURATION and _is_bare(value):
        hint = f'; the reference counts milliseconds: write "{value}ms"'
        raise NotThat(setting, value, hint)
    found = _worded(setting, value)
    return folder / found if setting.kind is Kind.PATH else found


def to_plain(setting: Setting, value: Any) -> Any:
    """The value as JSON and TOML can hold it, without passwords: False if off, None if not set."""
    if value is None:
        return None if setting.default is None else False
    if setting.kind is Kind.DURATION:
        return duration_text(value)
    if setting.kind is Kind.PATH:
        return str(value)
    return without_secrets(value) if setting.is_secret else value


def to_text(setting: Setting, value: Any) -> str:
    plain = to_plain(setting, value)
    if isinstance(plain, bool):
        return "on" if plain else OFF
    return "-" if plain is None else str(plain)


def expected(setting: Setting) -> str:
    """What it takes, in words."""
    match setting.kind:
        case Kind.TEXT | Kind.PATH:
            plain = "text"
        case Kind.NUMBER:
            plain = "a whole number" + ("" if setting.least is None else f" from {setting.least}")
        case Kind.SWITCH:
            return "true or false"
        case Kind.PART:
            return "true or false, or a table"
        case Kind.CHOICE:
            plain = " or ".join(setting.choices)
        case Kind.DURATION:
            plain = "a time such as 500ms, 2s, 1m30s, 1h or 1d"
    return f"{plain}, or off" if setting.may_be_off and setting.kind in SAY_OFF else plain


def _worded(setting: Setting, text: Any) -> Any:
    """What is said by a text, wherever it stands."""
    if not isinstance(text, str):
        raise NotThat(setting, text)
    if setting.kind is Kind.TEXT:
        return text
    if setting.kind is Kind.PATH and text:
        return Path(text)
    if setting.kind is Kind.CHOICE and text in setting.choices:
        return text
    if setting.kind is Kind.DURATION and (span := read_duration(text)) is not None:
        return span
    raise NotThat(setting, text)


def _says_off(setting: Setting, value: Any) -> bool:
    return setting.may_be_off and setting.kind in SAY_OFF and value == OFF


def _number(setting: Setting, value: int) -> int:
    if setting.least is not None and value < setting.least:
        raise NotThat(setting, value)
    return value


def _milliseconds(setting: Setting, text: str) -> timedelta:
    try:
        return timedelta(milliseconds=int(text))
    except OverflowError:
        raise NotThat(setting, text) from None


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_bare(value: Any) -> bool:
    """Is it a number without a unit?"""
    if isinstance(value, str):
        return WHOLE.fullmatch(value) is not None
    return _is_whole(value) or isinstance(value, float)


def _quoted(value: Any) -> str:
    """As a file would have it."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."
