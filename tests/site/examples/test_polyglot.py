"""examples/polyglot: TypeScript adds, Python runs and adds, TypeScript runs."""

import re
import subprocess

import pytest

from tests.site.examples.conftest import Example
from tests.support.processes import INSTALLED, READY, Program, eventually
from tests.support.tools import typescript_compiler
from tests.support.typescript import install_packages

NODE_READY = "Worker connected and looking for jobs"


@pytest.fixture
def installed(example: Example) -> Example:
    """As after `npm install`."""
    install_packages(example.folder)
    return example


def wait_until_said(program: Program, words: str) -> None:
    """Node's logger writes to standard output."""
    eventually(lambda: words in program.out or not program.is_running, f"it prints {words!r}")
    assert words in program.out, program.out + program.err


@pytest.mark.single_version
def test_the_typescript_of_the_example_is_generated_and_has_no_type_errors(installed):
    for words, name in (("--external --typescript", "tasks.ts"), ("--json-schema", "tasks.json")):
        command = installed.command(f"graphile-worker types --app python_worker {words}")
        line, _, target = command.partition(" > ")
        assert target == name
        # Without a shell, a fork runs it.
        printed = installed.run(INSTALLED, *line.split()[1:])
        assert printed == (installed.folder / name).read_text(encoding="utf-8")

    assert installed.type("graphile-worker types --app python_worker --check") == (
        "0 changes, 0 breaking\n"
    )
    add = (installed.folder / "add.ts").read_text()
    wrong = add.replace("amount: 2", 'amount: "2"').replace("order: 7", "order: null")
    (installed.folder / "wrong.ts").write_text(wrong)
    compiler = [str(typescript_compiler()), "--pretty", "false"]
    done = subprocess.run(compiler, cwd=installed.folder, capture_output=True, text=True)
    # The lines of both mistakes, and none of the example's own files.
    assert re.findall(r"^(\S+)\((\d+),", done.stdout, re.MULTILINE) == [
        ("wrong.ts", "7"),
        ("wrong.ts", "9"),
    ]


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
