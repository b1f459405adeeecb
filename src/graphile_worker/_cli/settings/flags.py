"""Flags of the command: one for each setting, before or after the name of a subcommand."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import click

from graphile_worker._cli.settings.layers import Settings, SettingSource, SettingValue
from graphile_worker._settings.definitions import SETTINGS, Setting, SettingKind, format_flag
from graphile_worker._settings.values import InvalidValue, format_default, parse_text
from graphile_worker._support.option_fields import HelpGroup
from graphile_worker._support.renamed import RENAMED_SETTINGS

Command = Callable[..., Any]


class GroupedHelp(click.Command):
    """A command whose `--help` lists its options under the headings of their groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows: dict[HelpGroup, list[tuple[str, str]]] = {group: [] for group in HelpGroup}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option) and (row := parameter.get_help_record(ctx)):
                rows[find_help_group(parameter)].append(row)
        for group, listed in rows.items():
            if listed:
                with formatter.section(f"{group} options"):
                    formatter.write_dl(listed)
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)


def find_help_group(option: click.Option) -> HelpGroup:
    """Return the group of a setting. Every other option is a common one."""
    setting = SETTINGS_BY_ARGUMENT.get(option.name or "")
    return HelpGroup.COMMON if setting is None else setting.help_group


@dataclass(slots=True)
class Flags:
    """The settings of the flags that are parsed so far, and the path of -C."""

    values: dict[str, SettingValue] = field(default_factory=dict)
    config: str | None = None


def current_flags() -> Flags:
    return click.get_current_context().ensure_object(Flags)


def current_settings() -> Settings:
    """Return the settings of the flags, the environment and the config file."""
    flags = current_flags()
    return Settings.collect(flags.values, flags.config)


def current_queue_settings() -> Settings:
    """Return the settings, with the connection and the schema of the app if they name one."""
    # Imports psycopg, which `--help` does not need.
    from graphile_worker._cli.settings.resolve import resolve_app

    settings = current_settings()
    return settings.with_app(resolve_app(settings))


def setting_flags(*names: str) -> Callable[[Command], Command]:
    """Add -C and the flags of these settings to a command, which calls `current_settings()`."""

    def add(function: Command) -> Command:
        options = [_build_option(SETTINGS[name]) for name in names]
        options += [
            reject_flag(format_flag(old), SETTINGS[new].flag)
            for old, new in RENAMED_SETTINGS.items()
            if new in names
        ]
        for option in reversed([_build_config_option(), *options]):
            function = option(function)
        return function

    return add


def reject_flag(old: str, new: str) -> Callable[[Command], Command]:
    """Add an old flag to a command, which rejects it and names the new one."""

    def reject(context: click.Context, _option: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise click.UsageError(f"{old} is now called {new}.", context)

    return click.option(
        old,
        "renamed" + old.replace("-", "_"),
        hidden=True,
        expose_value=False,
        # With or without a value.
        is_flag=False,
        flag_value="",
        default=None,
        callback=reject,
    )


class SettingParam(click.ParamType):  # type: ignore[type-arg]  # generic in newer click only
    """The value of a flag, wrapped because None means "off"."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self.name = setting.kind.value

    def convert(
        self, value: str, parameter: click.Parameter | None, context: click.Context | None
    ) -> SettingValue:
        try:
            parsed = parse_text(self._setting, value)
        except InvalidValue as error:
            self.fail(f"{error}.", parameter, context)
        return SettingValue(parsed, SettingSource.FLAG, self._setting.flag)


def _get_argument(setting: Setting) -> str:
    return setting.name.replace(".", "_")


SETTINGS_BY_ARGUMENT = {_get_argument(each): each for each in SETTINGS.values()}


def _build_option(setting: Setting) -> Callable[[Command], Command]:
    argument = _get_argument(setting)
    no_flag = f"--no-{setting.flag[2:]}"

    def store(context: click.Context, _option: click.Parameter, value: Any) -> None:
        if isinstance(value, bool):
            value = SettingValue(value, SettingSource.FLAG, setting.flag if value else no_flag)
        if isinstance(value, tuple):
            value = _join_lists(setting, value)
        if value is not None:
            context.ensure_object(Flags).values[setting.name] = value

    default = format_default(setting)
    common: dict[str, Any] = {
        "default": None,
        "expose_value": False,
        "callback": store,
        "help": setting.field.help + (f" (default: {default})." if default else "."),
    }
    if setting.is_toggle:
        return click.option(*setting.flags[:-1], f"{setting.flag}/{no_flag}", argument, **common)
    kind = "|".join(setting.choices) if setting.choices else setting.kind.value.upper()
    metavar = setting.field.metavar or kind
    return click.option(
        *setting.flags,
        argument,
        type=SettingParam(setting),
        metavar=metavar,
        multiple=setting.kind is SettingKind.LIST,
        **common,
    )


def _join_lists(setting: Setting, values: tuple[SettingValue, ...]) -> SettingValue | None:
    """Return the value of a flag that can be repeated, or None if it is not given."""
    if not values:
        return None
    joined = tuple(name for each in values for name in each.value)
    return SettingValue(joined, SettingSource.FLAG, setting.flag)


def _build_config_option() -> Callable[[Command], Command]:
    def store(context: click.Context, _option: click.Parameter, value: str | None) -> None:
        if value is not None:
            context.ensure_object(Flags).config = value

    return click.option(
        "-C",
        "--config",
        metavar="PATH",
        expose_value=False,
        callback=store,
        help="Config file (default: ./graphile-worker.toml).",
    )
