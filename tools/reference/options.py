"""Write the tables of options and flags from the fields of the option classes."""

import dataclasses
import json
import os
from datetime import timedelta
from typing import Any

from graphile_worker import options
from graphile_worker._settings.definitions import SETTINGS, Setting
from graphile_worker._settings.values import format_default
from graphile_worker._support.durations import format_exact_duration
from graphile_worker._support.option_fields import HelpGroup, OptionField
from tools.reference.commands import COMMAND_FLAGS, format_row
from tools.reference.tables import code, table

# Minimums that need no mention.
TRIVIAL_MINIMUMS = (None, 0, 1, options.MIN_INTERVAL)

WORKER_OPTIONS = {each.name for each in dataclasses.fields(options.WorkerOptions)}


def option_table(class_name: str) -> str:
    """Return the table of one option class. Options with several groups have a table for each."""
    fields = dataclasses.fields(getattr(options, class_name))
    rows = [
        (_declared(each).help_group or HelpGroup.ADVANCED, _option_row(each)) for each in fields
    ]
    head = ["option", "default", "meaning"]
    if len({group for group, _ in rows}) == 1:
        return table(head, (row for _, row in rows))
    return _group_tables(head, rows)


def setting_table(_arguments: str) -> str:
    """Return the tables of all settings: the flag, the key in a config file and the default."""
    flags, text = format_row(COMMAND_FLAGS["--config"])
    rows = [(HelpGroup.COMMON, [flags, "", "", text])]
    rows += [(each.help_group, _setting_row(each)) for each in SETTINGS.values()]
    return _group_tables(["flag", "key", "default", "meaning"], rows)


def _group_tables(head: list[str], rows: list[tuple[HelpGroup, list[str]]]) -> str:
    """Return a heading and a table for each group of options, in the order of the help."""
    return "\n".join(
        f"### {group.value}\n\n{table(head, [row for it, row in rows if it is group])}"
        for group in HelpGroup
        if any(it is group for it, _ in rows)
    )


def _declared(field: dataclasses.Field[Any]) -> OptionField:
    declared: OptionField = field.metadata["option"]
    return declared


def _option_row(field: dataclasses.Field[Any]) -> list[str]:
    declared = _declared(field)
    default_text = f": {declared.default_text}" if declared.default_text else ""
    default = code(format_python(declared.default)) + default_text
    return [link_to(declared.see, code(field.name)), default, describe(declared, none="None")]


def _setting_row(setting: Setting) -> list[str]:
    flags, _ = format_row(COMMAND_FLAGS[setting.flag])
    # The page of options has the details of the options of a worker.
    is_worker_option = setting.name.partition(".")[0] in WORKER_OPTIONS
    meaning = f"{setting.field.help}." if is_worker_option else describe(setting.field, none="off")
    key = link_to("" if is_worker_option else setting.field.see, code(setting.name))
    return [flags, key, format_default(setting), meaning]


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
    return " ".join(sentences)


def link_to(target: str, text: str) -> str:
    """Return a link from a page of docs/reference, or only the text without a target."""
    return f"[{text}]({os.path.relpath(target, 'reference')})" if target else text


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
