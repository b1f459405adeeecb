"""examples/polyglot: TypeScript adds, Python runs and adds, TypeScript runs."""

import re

import pytest

from tests.site.examples.conftest import Example
from tests.support.processes import READY, Program, eventually
from tests.support.tools import MODULES

NODE_READY = "Worker connected and looking for jobs"


@pytest.fixture
def installed(example: Example) -> Example:
    """As after `npm install`."""
    modules = example.folder / "node_modules"
    modules.mkdir()
    (modules / "graphile-worker").symlink_to(MODULES / "gw018")
    return example


def wait_until_said(program: Program, words: str) -> None:
    """Node's logger writes to standard output."""
    eventually(lambda: words in program.out or not program.is_running, f"it prints {words!r}")
    assert words in program.out, program.out + program.err


@pytest.mark.single_version
@pytest.mark.feature("F2", "F5")
def test_a_job_goes_from_typescript_to_python_and_back(installed):
    python = installed.start("graphile-worker --app python_worker:app")
    python.wait_for_line(READY)
    node = installed.start("node node_worker.ts")
    wait_until_said(node, NODE_READY)

    added = installed.type("node add.ts")

    assert re.fullmatch(r"added job \d+\n", added)
    python.wait_for_line("order 7 costs 15.90")
    wait_until_said(node, "order 7: please pay 15.90 EUR until 20")
    # Each ran its own task and no other.
    assert "send_invoice" not in python.err
    assert "price_order" not in node.out

    installed.passes_its_own_tests()
