"""Write the tables of options and flags from the fields of the option classes."""

import dataclasses
import json
import os
from datetime import timedelta
from typing import Any

from graphile_worker import options
from graphile_worker._cli.settings.definitions import SETTINGS, Setting
from graphile_worker._cli.settings.values import format_default
from graphile_worker._support.durations import format_exact_duration
from graphile_worker._support.option_fields import OptionField
from tools.pages import DOCS, find_headings
from tools.reference.commands import COMMAND_FLAGS, format_row
from tools.reference.tables import code, table

# Minimums that need no mention.
TRIVIAL_MINIMUMS = (None, 0, 1, options.MIN_INTERVAL)


def option_table(class_name: str) -> str:
    """Return the table of one option class."""
    rows = [_option_row(each) for each in dataclasses.fields(getattr(options, class_name))]
    return table(["option", "default", "meaning"], rows)


def setting_table(_arguments: str) -> str:
    """Return the table of all settings: the flag, the key in a config file and the default."""
    flags, text = format_row(COMMAND_FLAGS["--config"])
    rows = [[flags, "", "", text], *map(_setting_row, SETTINGS.values())]
    return table(["flag", "key", "default", "meaning"], rows)


def _option_row(field: dataclasses.Field[Any]) -> list[str]:
    declared: OptionField = field.metadata["option"]
    default_text = f": {declared.default_text}" if declared.default_text else ""
    default = code(format_python(declared.default)) + default_text
    return [code(field.name), default, describe(declared, none="None")]


def _setting_row(setting: Setting) -> list[str]:
    flags, _ = format_row(COMMAND_FLAGS[setting.flag])
    meaning = describe(setting.field, none="off")
    return [flags, code(setting.name), format_default(setting), meaning]


def describe(declared: OptionField, *, none: str) -> str:
    """Return the sentences that describe an option."""
    sentences = [f"{declared.help}."]
    if declared.detail:
        sentences.append(declared.detail)
    if declared.minimum not in TRIVIAL_MINIMUMS:
        is_duration = isinstance(declared.minimum, timedelta)
        minimum = format_exact_duration(declared.minimum) if is_duration else declared.minimum
        sentences.append(f"At least {minimum}.")
    if declared.none_means:
        sentences.append(f"{code(none)}: {declared.none_means}.")
    if declared.see:
        sentences.append(f"See {link(declared.see)}.")
    return " ".join(sentences)


def link(target: str) -> str:
    """Return a link from a page of docs/reference whose text is the title of its target."""
    path, _, anchor = target.partition("#")
    headings = find_headings((DOCS / path).read_text(encoding="utf-8"))
    [title, *_] = [each.text for each in headings if not anchor or each.anchor == anchor]
    return f"[{title}]({os.path.relpath(target, 'reference')})"


def format_python(value: Any) -> str:
    """Return the expression that creates a default."""
    if dataclasses.is_dataclass(value):
        return f"{type(value).__name__}()"
    if not isinstance(value, timedelta):
        return json.dumps(value) if isinstance(value, str) else repr(value)
    for unit in ("hours", "minutes", "seconds"):
        count, rest = divmod(value, timedelta(**{unit: 1}))
        if count and not rest:
            return f"timedelta({unit}={count})"
    return (
        f"timedelta(milliseconds={value // timedelta(milliseconds=1)})" if value else "timedelta(0)"
    )
