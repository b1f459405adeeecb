"""Flags of the worker: the options that they set."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import click
import pytest
from click.testing import CliRunner

from graphile_worker import ConfigurationError
from graphile_worker._cli.main import command
from graphile_worker._cli.settings.flags import current_settings
from graphile_worker.options import LocalQueueOptions, RecoveryOptions, WorkerOptions


@pytest.fixture
def collect_options(empty_environment) -> Callable[..., dict[str, Any]]:
    """Return the function that collects the arguments of WorkerOptions from flags."""

    def collect(*flags: str) -> dict[str, Any]:
        with command.make_context("graphile-worker", list(flags)):
            return current_settings().collect_worker_options()

    return collect


def test_flags_that_are_not_given_leave_the_defaults_to_the_options(collect_options):
    assert collect_options() == {}


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
def test_each_flag_sets_its_option(collect_options, flags, options):
    assert collect_options(*flags) == options


@pytest.mark.feature("F219")
def test_a_flag_sets_the_lease_duration_in_milliseconds(collect_options):
    found = collect_options("--lease-duration", "2500")

    assert found == {"recovery": RecoveryOptions(lease_duration=timedelta(seconds=2.5))}
    assert WorkerOptions(**found).recovery == found["recovery"]


@pytest.mark.feature("F219")
def test_a_flag_turns_recovery_off(collect_options):
    found = collect_options("--no-recovery")

    # Explicitly None, because the default of the options is on.
    assert found == {"recovery": None}
    assert WorkerOptions(**found).recovery is None


def test_turning_recovery_off_excludes_its_flags(collect_options):
    with pytest.raises(ConfigurationError) as raised:
        collect_options("--no-recovery", "--lease-duration", "2500")

    assert str(raised.value) == (
        "--no-recovery and --lease-duration exclude each other. Remove one."
    )


def test_a_flag_after_the_subcommand_overrides_one_before_it(empty_environment):
    done = CliRunner().invoke(command, ["-j", "2", "-s", "one", "config", "-j", "3", "--json"])

    found = json.loads(done.stdout)
    assert found["concurrency"]["value"] == 3
    assert found["schema"]["value"] == "one"


@pytest.mark.parametrize(("value", "formatted"), [("500", "0:00:00.500000"), ("0", "0:00:00")])
def test_a_lease_duration_that_is_too_short_is_rejected_with_the_value(
    collect_options, value, formatted
):
    with pytest.raises(ConfigurationError) as raised:
        collect_options("--lease-duration", value)

    assert str(raised.value) == f"lease_duration must be at least 0:00:01, got {formatted}"


@pytest.mark.parametrize("value", ["soon", "2.5", ""])
def test_a_lease_duration_is_a_number_of_milliseconds_or_has_a_unit(value):
    done = CliRunner().invoke(command, ["--lease-duration", value])

    assert done.exit_code == click.UsageError.exit_code
    assert "--lease-duration" in done.output


def test_an_unknown_variable_is_logged_once_with_the_most_similar_setting(
    monkeypatch, empty_environment
):
    variables = {
        "GRAPHILE_WORKER_CONCURRENT": "did you mean 'GRAPHILE_WORKER_CONCURRENCY'?",
        "GRAPHILE_WORKER_JOBS": "did you mean 'GRAPHILE_WORKER_CONCURRENCY'?",
        "GRAPHILE_WORKER_DATABASE_URL": "did you mean 'DATABASE_URL'?",
        "GRAPHILE_WORKER_RECOVERY_LEASE_DURATIONS": (
            "did you mean 'GRAPHILE_WORKER_RECOVERY_LEASE_DURATION'?"
        ),
        "GRAPHILE_WORKER_QZX": "see `graphile-worker config`",
    }
    # Set by Kubernetes for a service of that name, for executables, and for the log.
    ignored = ("SERVICE_HOST", "SERVICE_PORT", "PORT", "PORT_80_TCP_ADDR", "JOB_ID", "DEBUG")
    for name in [*variables, *(f"GRAPHILE_WORKER_{each}" for each in ignored)]:
        monkeypatch.setenv(name, "1")

    output = CliRunner().invoke(command, ["config"]).output

    lines = [line for line in output.splitlines() if "unknown setting" in line]
    assert len(lines) == len(variables)
    for name, hint in variables.items():
        assert any(f"ignored {name}: " in line and hint in line for line in lines), (name, lines)


def test_supervised_processes_do_not_repeat_the_line_about_unknown_variables(
    monkeypatch, empty_environment
):
    monkeypatch.setenv("GRAPHILE_WORKER_CONCURRENT", "1")

    assert "unknown setting" in CliRunner().invoke(command, ["config"]).output
    assert "unknown setting" not in CliRunner().invoke(command, ["--parent", "3", "config"]).output
