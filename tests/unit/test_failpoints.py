"""Failpoints: refused unless understood, each in its one place, and nothing when not asked for."""

import ast
import os
import signal
import subprocess
import sys
import timeit
from collections import Counter
from pathlib import Path

import pytest

from graphile_worker._support.failpoints import (
    FAILPOINTS,
    FAILPOINTS_VARIABLE,
    LOG_VARIABLE,
    FailpointError,
    build_failpoint,
    failpoint,
)
from graphile_worker.errors import ConfigurationError

SOURCE = Path(__file__).parents[2] / "src" / "graphile_worker"

# Seconds that the two passages of each job may take; in truth a twentieth of a microsecond.
MOST = 2e-6


# On Python 3.11 ast.parse may raise "SystemError: AST constructor recursion depth mismatch", a
# fault of CPython that later versions fix. The places are the same on each version.
@pytest.mark.single_version
def test_each_failpoint_is_where_its_entry_says_and_nowhere_else():
    expected = Counter((name, place.module, place.function) for name, place in FAILPOINTS.items())

    assert Counter(called_places()) == expected


def test_there_are_sixteen_and_each_says_what_is_so_there():
    assert len(FAILPOINTS) == 16
    assert all(place.description for place in FAILPOINTS.values())


def test_nothing_happens_where_the_variable_is_not_set():
    passing = build_failpoint({})

    assert passing is build_failpoint({FAILPOINTS_VARIABLE: ""})
    assert [passing(name) for name in FAILPOINTS] == [None] * 16


@pytest.mark.nightly
def test_a_passage_of_nothing_costs_next_to_nothing():
    assert FAILPOINTS_VARIABLE not in os.environ

    each = min(timeit.repeat(lambda: failpoint("task_started"), number=1000, repeat=20)) / 1000

    assert 2 * each < MOST


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("kill", "expected name=action"),
        ("task_ended", "expected name=action"),
        ("task_ended=kill@0", "expected name=action"),
        ("task_ended=kill@soon", "expected name=action"),
        ("task_ended=kill,", "expected name=action"),
        ("task_end=kill", "no failpoint is called 'task_end'; known: before_claim, claim_sent"),
        ("task_ended=die", "actions are kill, stop, raise and sleep:SECONDS"),
        ("task_ended=sleep", "actions are"),
        ("task_ended=kill:3", "actions are"),
        ("before_claim=kill,task_ended=die", "'task_ended=die': actions are"),
    ],
)
def test_what_cannot_be_understood_is_refused(text, reason):
    with pytest.raises(ConfigurationError, match=f"^{FAILPOINTS_VARIABLE}: .*{reason}"):
        build_failpoint({FAILPOINTS_VARIABLE: text})


def test_a_wrong_variable_is_refused_when_the_package_is_imported():
    done = imported({FAILPOINTS_VARIABLE: "nowhere=kill"})

    assert done.returncode == 1
    assert "ConfigurationError: GRAPHILE_WORKER_FAILPOINTS: 'nowhere=kill'" in done.stderr


def test_raise_raises_at_the_first_passage_and_at_no_other():
    passing = build_failpoint({FAILPOINTS_VARIABLE: "task_ended=raise"})

    passing("task_started")
    with pytest.raises(FailpointError):
        passing("task_ended")
    passing("task_ended")


def test_several_may_be_named_each_with_its_own_passage():
    passing = build_failpoint({FAILPOINTS_VARIABLE: "task_ended=raise@3, failing=raise@2"})

    passing("task_ended")
    passing("failing")
    passing("task_ended")
    with pytest.raises(FailpointError):
        passing("failing")
    with pytest.raises(FailpointError):
        passing("task_ended")


def test_sleep_takes_its_time(monkeypatch):
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    passing = build_failpoint({FAILPOINTS_VARIABLE: "before_claim=sleep:0.25@2"})

    passing("before_claim")
    passing("before_claim")

    assert slept == [0.25]


def test_every_passage_of_what_is_named_is_noted(tmp_path):
    log = tmp_path / "log"
    passing = build_failpoint(
        {FAILPOINTS_VARIABLE: "task_ended=sleep:0@2,failing=raise@9", LOG_VARIABLE: str(log)}
    )

    for name in ("task_started", "task_ended", "failing", "task_ended", "task_ended"):
        passing(name)

    pid = os.getpid()
    noted = [
        f"task_ended 1 {pid}",
        f"failing 1 {pid}",
        f"task_ended 2 {pid}",
        f"task_ended 3 {pid}",
    ]
    assert log.read_text(encoding="utf-8").splitlines() == noted


def test_kill_ends_the_process_and_the_passage_is_noted_before(tmp_path):
    log = tmp_path / "log"

    done = imported(
        {FAILPOINTS_VARIABLE: "completing=kill@2", LOG_VARIABLE: str(log)},
        "completing",
        "completing",
    )

    assert done.returncode == -signal.SIGKILL
    assert done.stdout == "passed\n"
    assert [line.split()[:2] for line in log.read_text(encoding="utf-8").splitlines()] == [
        ["completing", "1"],
        ["completing", "2"],
    ]


def test_stop_lets_the_process_stand_still_until_it_is_told_to_go_on():
    process = subprocess.Popen(
        program("heartbeat"),
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
    """Name, module and function of every call of a failpoint; all names are literals."""
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
    """A program that passes these failpoints one by one, and says so."""
    code = "import sys; from graphile_worker._support.failpoints import failpoint\n"
    code += "for name in sys.argv[1:]: failpoint(name); print('passed', flush=True)"
    return [sys.executable, "-c", code, *names]


def imported(variables: dict[str, str], *names: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        program(*names), env={**os.environ, **variables}, capture_output=True, text=True
    )
