"""Workers of an older version are replaced one by one under load, the schema is migrated before.

`just chaos upgrade --upgrade-from REVISION` is the same in large.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.laboratory.run import run_scenario
from tests.laboratory.scenarios import upgrade
from tests.laboratory.versions import before_the_last_migration, commit_of
from tests.support.tiers import size

pytestmark = [pytest.mark.single_version, pytest.mark.timeout(300)]

OLDER = {"other schema": before_the_last_migration(), "previous commit": commit_of("HEAD~1")}


@pytest.mark.parametrize("older", size(gate=["other schema"], nightly=list(OLDER)))
def test_workers_are_replaced_by_newer_ones_and_no_job_is_lost_or_stuck(
    older: str, tmp_path: Path, pytestconfig: pytest.Config, figure: Callable[[str], None]
):
    if not OLDER[older]:
        pytest.skip("the history of this checkout does not reach so far")
    faults = {"upgrade": 4, "sigkill": size(gate=2, nightly=4), "backend": size(gate=1, nightly=2)}
    jobs = size(gate=1_000, nightly=2_000)
    scenario = replace(
        upgrade(3), jobs=jobs, rate=100, processes=4, faults=faults, upgrade_from=OLDER[older]
    )

    outcome = run_scenario(scenario, tmp_path, pytestconfig.getoption("--pg"))

    figure(f"rolling upgrade: {outcome.acknowledged} jobs; {outcome.lines()[2]}")
    assert outcome.report.violations == 0, "\n".join(outcome.lines())
    assert outcome.faults["upgrade"] == 4
    assert min(outcome.versions) >= 4
