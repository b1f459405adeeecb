"""What the flags of the worker say about its options; defaults are no business of theirs."""

import json
from collections.abc import Callable
from datetime import timedelta

import click
import pytest
from click.testing import CliRunner

from graphile_worker import ConfigurationError
from graphile_worker._cli import main as main_module
from graphile_worker._cli.commands.run import RunMode
from graphile_worker._cli.main import command
from graphile_worker._cli.settings.layers import Settings
from graphile_worker.options import LocalQueueOptions, RecoveryOptions, WorkerOptions

Read = Callable[..., Settings]


@pytest.fixture
def settings(monkeypatch, nothing_given) -> Read:
    """What becomes of flags, without a worker."""

    def read(*flags: str) -> Settings:
        found: list[Settings] = []

        def keep(asked: RunMode, settings: Settings) -> int:
            found.append(settings)
            return 0

        monkeypatch.setattr(main_module, "run_command", keep)
        done = CliRunner().invoke(command, list(flags))
        if isinstance(done.exception, ConfigurationError):
            raise done.exception
        assert done.exit_code == 0, done.output
        return found[0]

    return read


@pytest.fixture
def given(settings):
    """What flags say of WorkerOptions."""
    return lambda *flags: settings(*flags).collect_worker_options()


def test_what_was_not_given_is_left_to_the_options(given):
    assert given() == {}


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        (["-j", "4"], {"concurrency": 4}),
        (["-m", "4"], {"max_pool_size": 4}),
        (["-s", "jobs"], {"schema": "jobs"}),
        (["--poll-interval", "250"], {"poll_interval": timedelta(milliseconds=250)}),
        (["--no-prepared-statements"], {"prepared_statements": False}),
        (["--no-listen"], {"listen": False}),
        (["--listen"], {"listen": True}),
        (["--cancel-after", "off"], {"cancel_after": None}),
        (["--shutdown-timeout", "1m30s"], {"shutdown_timeout": timedelta(seconds=90)}),
        (["--no-local-queue"], {"local_queue": None}),
        (["--local-queue-size", "7"], {"local_queue": LocalQueueOptions(size=7)}),
    ],
)
def test_each_flag_is_an_option_by_its_name_there(given, flags, options):
    assert given(*flags) == options


@pytest.mark.feature("F219")
def test_a_flag_says_after_how_many_milliseconds_a_silent_worker_is_dead(given):
    found = given("--lease-duration", "2500")

    assert found == {"recovery": RecoveryOptions(lease_duration=timedelta(seconds=2.5))}
    assert WorkerOptions(**found).recovery == found["recovery"]


@pytest.mark.feature("F219")
def test_a_flag_turns_recovery_off(given):
    found = given("--no-recovery")

    # Given, and not left out: the options would turn it on.
    assert found == {"recovery": None}
    assert WorkerOptions(**found).recovery is None


def test_recovery_is_not_both_off_and_set(given):
    with pytest.raises(ConfigurationError) as refused:
        given("--no-recovery", "--lease-duration", "2500")

    assert str(refused.value) == "--no-recovery and --lease-duration exclude each other"


def test_a_flag_after_the_subcommand_stands_above_one_before_it(nothing_given):
    done = CliRunner().invoke(command, ["-j", "2", "-s", "one", "config", "-j", "3", "--json"])

    found = json.loads(done.stdout)
    assert found["concurrency"]["value"] == 3
    assert found["schema"]["value"] == "one"


@pytest.mark.parametrize(("value", "shown"), [("500", "0:00:00.500000"), ("0", "0:00:00")])
def test_a_threshold_that_is_too_short_is_refused_with_what_was_given(given, value, shown):
    with pytest.raises(ConfigurationError) as refused:
        given("--lease-duration", value)

    assert str(refused.value) == f"lease_duration must be at least 0:00:01, got {shown}"


@pytest.mark.parametrize("value", ["soon", "2.5", ""])
def test_a_threshold_is_a_number_of_milliseconds_or_has_a_unit(value):
    done = CliRunner().invoke(command, ["--lease-duration", value])

    assert done.exit_code == click.UsageError.exit_code
    assert "--lease-duration" in done.output


def test_a_variable_that_is_not_a_setting_is_named_once_with_the_nearest_one(
    monkeypatch, nothing_given
):
    variables = {
        "GRAPHILE_WORKER_CONCURRENT": "did you mean GRAPHILE_WORKER_CONCURRENCY?",
        "GRAPHILE_WORKER_JOBS": "did you mean GRAPHILE_WORKER_CONCURRENCY?",
        "GRAPHILE_WORKER_DATABASE_URL": "did you mean DATABASE_URL?",
        "GRAPHILE_WORKER_RECOVERY_LEASE_DURATIONS": (
            "did you mean GRAPHILE_WORKER_RECOVERY_LEASE_DURATION?"
        ),
        "GRAPHILE_WORKER_QZX": "`graphile-worker config` names all",
    }
    # Set by Kubernetes for a service of that name, for the program of a job, and for the log.
    silent = ("SERVICE_HOST", "SERVICE_PORT", "PORT", "PORT_80_TCP_ADDR", "JOB_ID", "DEBUG")
    for name in [*variables, *(f"GRAPHILE_WORKER_{each}" for each in silent)]:
        monkeypatch.setenv(name, "1")

    said = CliRunner().invoke(command, ["config"]).output

    lines = [line for line in said.splitlines() if "there is no such setting" in line]
    assert len(lines) == len(variables)
    for name, cure in variables.items():
        assert any(f"ignored {name}: " in line and cure in line for line in lines), (name, lines)


def test_the_processes_of_a_parent_do_not_repeat_what_it_says_of_variables(
    monkeypatch, nothing_given
):
    monkeypatch.setenv("GRAPHILE_WORKER_CONCURRENT", "1")
    monkeypatch.setattr(main_module, "run_command", lambda asked, settings: 0)

    assert "no such setting" in CliRunner().invoke(command, []).output
    assert "no such setting" not in CliRunner().invoke(command, ["--parent", "3"]).output
