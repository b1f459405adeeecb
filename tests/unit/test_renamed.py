"""Old names of settings and flags are rejected, and the message has the new one."""

from typing import Any

import pytest
from click.testing import CliRunner

from graphile_worker import ConfigurationError, RecoveryOptions, WorkerOptions
from graphile_worker._cli.main import command
from graphile_worker._cli.settings.config_file import read_config
from graphile_worker._cli.settings.layers import Settings
from graphile_worker._settings.definitions import SETTINGS, format_flag, format_variable
from graphile_worker._support.renamed import RENAMED_FLAGS, RENAMED_SETTINGS

COMMANDS = {
    "--rest": ("jobs", "retry", "--rest", "2"),
    "--held-for": ("doctor", "--held-for", "5m"),
    "--dead": ("workers", "recover", "--dead"),
}


def test_every_new_name_is_a_setting_and_no_old_one_is():
    assert set(RENAMED_SETTINGS.values()) <= SETTINGS.keys()
    assert not RENAMED_SETTINGS.keys() & SETTINGS.keys()


def test_an_old_option_is_rejected_with_the_new_name():
    for old, new in RENAMED_SETTINGS.items():
        group, _, name = old.rpartition(".")
        options: Any = RecoveryOptions if group else WorkerOptions
        with pytest.raises(ConfigurationError, match=f"{name} is now called {new.split('.')[-1]}$"):
            options(**{name: 1})


def test_an_old_flag_is_rejected_with_the_new_name():
    for old, new in RENAMED_SETTINGS.items():
        flag = format_flag(old)
        for line in ((flag, "5s"), (f"{flag}=5s",)):
            done = CliRunner().invoke(command, line)
            assert done.exit_code == 2
            assert f"{flag} is now called {SETTINGS[new].flag}." in done.output


def test_an_old_flag_of_a_subcommand_is_rejected_with_the_new_name():
    assert COMMANDS.keys() == RENAMED_FLAGS.keys()
    for old, line in COMMANDS.items():
        done = CliRunner().invoke(command, line)
        assert done.exit_code == 2
        assert f"{old} is now called {RENAMED_FLAGS[old]}." in done.output


def test_an_old_environment_variable_is_rejected_with_the_new_name(monkeypatch):
    for old, new in RENAMED_SETTINGS.items():
        with monkeypatch.context() as patch:
            patch.setenv(variable := format_variable(old), "5s")
            with pytest.raises(
                ConfigurationError, match=f"^{variable} is now called {SETTINGS[new].variable}$"
            ):
                Settings.collect({})


def test_an_old_key_of_a_config_file_is_rejected_with_the_new_name(tmp_path):
    path = tmp_path / "graphile-worker.toml"
    for old, new in RENAMED_SETTINGS.items():
        path.write_text(f"{old} = '5s'\n", encoding="utf-8")
        with pytest.raises(ConfigurationError, match=f"{old} is now called {new}$"):
            read_config(path, is_explicit=True, allow_unsafe=True)
