"""The page about several languages, beside the matrices of the tests."""

import pytest

from tests.interop import test_rust_matrix as matrix
from tests.interop import test_rust_recovery as recovery
from tests.support.tools import ROOT

PAGE = ROOT / "docs" / "concepts" / "sharing-with-node-and-rust.md"


@pytest.mark.single_version
def test_the_page_states_the_number_of_cells_of_each_matrix():
    text = PAGE.read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    found = {row[0].removeprefix("| "): row[1] for row in rows if row[1].isdigit()}

    expected = {
        "each order of two installers": len(matrix.PAIRS),
        "two installers, who adds, who runs": len(matrix.RUN_CELLS),
        "who installs, who adds, who adds to the same keys": len(matrix.KEY_CELLS),
        "who installs, whose task fails, who retries": len(matrix.RETRY_CELLS),
        "who died, who runs, how old the lock is": recovery.CELL_COUNT,
    }
    for start, cells in expected.items():
        assert [int(n) for test, n in found.items() if test.startswith(start)] == [cells], start
