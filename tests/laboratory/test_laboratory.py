"""The smoke scenario of the laboratory: random faults on real processes, and no violation.

`python -m tests.laboratory long` runs the large scenario.
"""

from collections.abc import Callable
from dataclasses import replace
from math import ceil
from pathlib import Path

import pytest

from tests.laboratory.run import run_scenario
from tests.laboratory.scenarios import Moment, Scenario, limits, schedule, smoke
from tests.support.tiers import random_seed, size

pytestmark = [pytest.mark.single_version, pytest.mark.timeout(400)]

SEEDS = size(gate=[7], nightly=[7, random_seed()])
JOBS = size(gate=2_000, nightly=5_000)
FAULTS = size(gate=13, nightly=25)


def sized(scenario: Scenario) -> Scenario:
    """The scenario with fewer jobs and half of each kind of fault in the gate."""
    halves = {kind: ceil(count / 2) for kind, count in scenario.faults.items()}
    return replace(scenario, jobs=JOBS, faults=size(gate=halves, nightly=scenario.faults))


@pytest.mark.parametrize("seed", SEEDS, ids=["fixed", "random"][: len(SEEDS)])
def test_random_faults_lose_no_job_run_none_twice_and_leave_no_lock(
    seed: int, tmp_path: Path, pytestconfig: pytest.Config, figure: Callable[[str], None]
):
    outcome = run_scenario(sized(smoke(seed)), tmp_path, pytestconfig.getoption("--pg"))

    figure(f"laboratory, seed {seed}: {outcome.lines()[1]}")
    figure(f"laboratory, seed {seed}: metrics {outcome.metrics}")
    assert outcome.report.violations == 0, "\n".join(outcome.lines())
    assert outcome.metrics.differences == []
    assert outcome.acknowledged >= JOBS
    assert sum(outcome.faults.values()) >= FAULTS
    assert outcome.slow_to_stop == []


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_random_faults_let_no_more_jobs_of_a_limited_task_run_and_leave_all_slots_free(
    tmp_path: Path, pytestconfig: pytest.Config, figure: Callable[[str], None]
):
    outcome = run_scenario(limits(7), tmp_path, pytestconfig.getoption("--pg"))

    figure("; ".join(["laboratory, limits", *outcome.lines()]))
    assert outcome.report.violations == 0, "\n".join(outcome.lines())
    assert outcome.slow_to_stop == []


def test_a_schedule_follows_from_its_seed():
    assert schedule(smoke(1)) == schedule(smoke(1)) != schedule(smoke(2))


def test_each_fault_of_a_scenario_is_due_while_jobs_are_added():
    scenario = smoke(3)
    moments: list[Moment] = schedule(scenario)

    assert len(moments) == sum(scenario.faults.values())
    assert all(0 <= moment.at <= scenario.seconds for moment in moments)
