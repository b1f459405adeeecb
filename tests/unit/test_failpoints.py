"""Failpoints do nothing without a hook. The hook of the tests kills, stops, delays or raises."""

import ast
import os
import signal
import subprocess
import sys
import timeit
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from graphile_worker._support.failpoints import failpoint, install_hook
from tests.support.failpoints import (
    FAILPOINTS,
    FAILPOINTS_VARIABLE,
    LOG_VARIABLE,
    FailpointError,
    build_hook,
)

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "graphile_worker"

# Two failpoints are reached for each job; in practice they take a twentieth of a microsecond.
MAX_SECONDS_PER_JOB = 2e-6


@pytest.fixture
def reached() -> Iterator[list[str]]:
    """The names of the failpoints that this process reaches."""
    names: list[str] = []
    install_hook(names.append)
    yield names
    install_hook(None)


# On Python 3.11 ast.parse may raise "SystemError: AST constructor recursion depth mismatch", a
# fault of CPython that later versions fix. The places are the same on each version.
@pytest.mark.single_version
def test_each_failpoint_is_called_in_its_location_and_nowhere_else():
    expected = Counter((name, place.module, place.function) for name, place in FAILPOINTS.items())

    assert Counter(called_places()) == expected


def test_there_are_sixteen_failpoints_with_a_description():
    assert len(FAILPOINTS) == 16
    assert all(place.description for place in FAILPOINTS.values())


def test_a_hook_is_called_until_it_is_removed(reached):
    failpoint("task_started")
    install_hook(None)
    failpoint("task_ended")

    assert reached == ["task_started"]


def test_no_environment_variable_makes_an_installed_worker_fail():
    code = "from graphile_worker._support.failpoints import failpoint; failpoint('completing')"
    variables = dict.fromkeys(
        [FAILPOINTS_VARIABLE, f"GRAPHILE_WORKER_{FAILPOINTS_VARIABLE}"], "completing=kill"
    )

    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **variables})

    assert done.returncode == 0
    sources = [path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")]
    assert not any(FAILPOINTS_VARIABLE in text for text in sources)


@pytest.mark.nightly
def test_a_failpoint_without_a_hook_costs_less_than_a_microsecond():
    seconds = min(timeit.repeat(lambda: failpoint("task_started"), number=1000, repeat=20)) / 1000

    assert 2 * seconds < MAX_SECONDS_PER_JOB


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("kill", "expected name=action"),
        ("task_ended", "expected name=action"),
        ("task_ended=kill@0", "expected name=action"),
        ("task_ended=kill@soon", "expected name=action"),
        ("task_ended=kill,", "expected name=action"),
        ("task_end=kill", "unknown failpoint 'task_end'; known: before_claim, claim_sent"),
        ("task_ended=die", "actions are kill, stop, raise and sleep:SECONDS"),
        ("task_ended=sleep", "actions are"),
        ("task_ended=kill:3", "actions are"),
        ("before_claim=kill,task_ended=die", "'task_ended=die': actions are"),
    ],
)
def test_an_invalid_fault_is_rejected(text, reason):
    with pytest.raises(ValueError, match=reason):
        build_hook(text)


def test_raise_raises_at_the_first_passage_only():
    reach = build_hook("task_ended=raise")

    reach("task_started")
    with pytest.raises(FailpointError):
        reach("task_ended")
    reach("task_ended")


def test_each_of_several_faults_has_its_own_passage():
    reach = build_hook("task_ended=raise@3, failing=raise@2")

    reach("task_ended")
    reach("failing")
    reach("task_ended")
    with pytest.raises(FailpointError):
        reach("failing")
    with pytest.raises(FailpointError):
        reach("task_ended")


def test_sleep_delays_the_process(monkeypatch):
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    reach = build_hook("before_claim=sleep:0.25@2")

    reach("before_claim")
    reach("before_claim")

    assert slept == [0.25]


def test_the_log_contains_every_passage_of_a_failpoint_with_a_fault(tmp_path):
    log = tmp_path / "log"
    reach = build_hook("task_ended=sleep:0@2,failing=raise@9", str(log))

    for name in ("task_started", "task_ended", "failing", "task_ended", "task_ended"):
        reach(name)

    pid = os.getpid()
    assert log.read_text(encoding="utf-8").splitlines() == [
        f"task_ended 1 {pid}",
        f"failing 1 {pid}",
        f"task_ended 2 {pid}",
        f"task_ended 3 {pid}",
    ]


def test_kill_ends_the_process_after_the_passage_is_logged(tmp_path):
    log = tmp_path / "log"
    variables = {FAILPOINTS_VARIABLE: "completing=kill@2", LOG_VARIABLE: str(log)}

    done = subprocess.run(
        program("completing", "completing"),
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )

    assert done.returncode == -signal.SIGKILL
    assert done.stdout == "passed\n"
    assert [line.split()[:2] for line in log.read_text(encoding="utf-8").splitlines()] == [
        ["completing", "1"],
        ["completing", "2"],
    ]


def test_stop_suspends_the_process_until_a_sigcont():
    process = subprocess.Popen(
        program("heartbeat"),
        cwd=ROOT,
        env={**os.environ, FAILPOINTS_VARIABLE: "heartbeat=stop"},
        stdout=subprocess.PIPE,
        text=True,
    )
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)

    process.send_signal(signal.SIGCONT)

    assert process.communicate()[0] == "passed\n"
    assert process.returncode == 0


def called_places() -> list[tuple[str, str, str]]:
    """Name, module and function of every call; all names are literals."""
    found: list[tuple[str, str, str]] = []
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                module = path.relative_to(SOURCE).as_posix()
                found += [(name, module, function.name) for name in names_in(function)]
    return found


def names_in(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    return [
        ast.literal_eval(node.args[0])
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "failpoint"
    ]


def program(*names: str) -> list[str]:
    """A program that reaches these failpoints one by one, and prints a line after each."""
    code = "import sys; from graphile_worker._support.failpoints import failpoint\n"
    code += "from tests.support.failpoints import install_from_environment\n"
    code += "install_from_environment()\n"
    code += "for name in sys.argv[1:]: failpoint(name); print('passed', flush=True)"
    return [sys.executable, "-c", code, *names]
