"""What the flags of the worker say about its options; defaults are no business of theirs."""

from datetime import timedelta
from typing import Any

import click
import pytest
from click.testing import CliRunner

from graphile_worker import ConfigurationError
from graphile_worker.cli import main as main_module
from graphile_worker.cli.main import command
from graphile_worker.cli.settings import WorkerSettings
from graphile_worker.options import RecoveryOptions, WorkerOptions


@pytest.fixture
def settings(monkeypatch):
    """What becomes of flags, without a worker."""

    def read(*flags: str) -> WorkerSettings:
        found: list[WorkerSettings] = []

        def keep(settings: WorkerSettings) -> int:
            found.append(settings)
            return 0

        monkeypatch.setattr(main_module, "work", keep)
        done = CliRunner().invoke(command, list(flags))
        assert done.exit_code == 0, done.output
        return found[0]

    return read


def given(settings: WorkerSettings) -> dict[str, Any]:
    settings.check()
    return settings.given_options()


def test_what_was_not_given_is_left_to_the_options(settings):
    assert given(settings()) == {}


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        (["-j", "4"], {"concurrency": 4}),
        (["-m", "4"], {"max_pool_size": 4}),
        (["-s", "jobs"], {"schema": "jobs"}),
        (["--poll-interval", "250"], {"poll_interval": timedelta(milliseconds=250)}),
        (["--no-prepared-statements"], {"prepared_statements": False}),
        (["--no-listen"], {"listen": False}),
    ],
)
def test_each_flag_is_an_option_by_its_name_there(settings, flags, options):
    assert given(settings(*flags)) == options


@pytest.mark.feature("F219")
def test_a_flag_says_after_how_many_milliseconds_a_silent_worker_is_dead(settings):
    found = given(settings("--recovery-threshold", "2500"))

    assert found == {"recovery": RecoveryOptions(threshold=timedelta(seconds=2.5))}
    assert WorkerOptions(**found).recovery == found["recovery"]


@pytest.mark.feature("F219")
def test_a_flag_turns_recovery_off(settings):
    found = given(settings("--no-recovery"))

    # Given, and not left out: the options would turn it on.
    assert found == {"recovery": None}
    assert WorkerOptions(**found).recovery is None


def test_recovery_is_not_both_off_and_set(settings):
    both = settings("--no-recovery", "--recovery-threshold", "2500")

    with pytest.raises(ConfigurationError) as refused:
        both.check()

    assert str(refused.value) == "--no-recovery and --recovery-threshold exclude each other"


@pytest.mark.parametrize(("value", "shown"), [("500", "0:00:00.500000"), ("0", "0:00:00")])
def test_a_threshold_that_is_too_short_is_refused_with_what_was_given(settings, value, shown):
    with pytest.raises(ConfigurationError) as refused:
        given(settings("--recovery-threshold", value))

    assert str(refused.value) == f"threshold must be at least 0:00:01, got {shown}"


@pytest.mark.parametrize("value", ["soon", "2.5", ""])
def test_a_threshold_is_a_number_of_milliseconds(value):
    done = CliRunner().invoke(command, ["--recovery-threshold", value])

    assert done.exit_code == click.UsageError.exit_code
    assert "--recovery-threshold" in done.output
