"""Our statements under a held snapshot: pages are counted, so a busy machine changes nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.server import served
from benchmarks.snapshot import snapshot
from tests.support.shared_folder import made_once

pytestmark = [pytest.mark.single_version, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def found(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a fourth of the benchmark's jobs leave behind, counted once for all processes."""

    def count(folder: Path) -> None:
        with served(pytestconfig.getoption("--pg")) as server:
            counted = snapshot(server, jobs=10_000)
        (folder / "counted.json").write_text(json.dumps(counted))

    folder = made_once(tmp_path_factory, "open_snapshot", count)
    counted: dict[str, Any] = json.loads((folder / "counted.json").read_text())
    return counted


def test_the_references_claim_goes_wrong_here(found):
    assert found["reference_scans_primary_key"]
    assert found["claims"]["1"]["reference_worst"] > 20 * found["claims"]["1"]["reference_best"]


@pytest.mark.parametrize("size", ["1", "100"])
def test_our_claim_touches_at_most_twice_what_the_references_better_plan_does(found, size, figure):
    claim = found["claims"][size]
    figure(f"claim of {size} under a held snapshot: {claim['ratio']} × the reference's better plan")

    assert claim["ratio"] <= 2


def test_none_of_our_statements_reads_the_whole_primary_key(found):
    assert not found["ours_scans_primary_key"]


@pytest.mark.parametrize("statement", ["our finish", "our fail", "our return"])
def test_completing_a_job_reads_few_pages_behind_any_dead_rows(found, statement):
    cells = [cell for cell in found["cells"] if cell["statement"] == statement]

    assert all(cell["buffers"] <= 40 * cell["jobs"] for cell in cells)
