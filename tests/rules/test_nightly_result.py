"""The recorded result of the nightly tier: a failed one fails the gate, an old one warns."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support import tools
from tools import nightly
from tools.nightly import Result


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Record an outcome of one step, some commits ago; None for a commit that is unknown."""
    monkeypatch.setattr(nightly, "RESULTS", tmp_path / "results.json")

    def record(outcome: str, age: int | None = 0, others: str = "passed") -> int:
        result = {"commit": "abc1234def", "outcome": outcome, "reason": "no server"}
        newer = {"commit": "fed4321cba", "outcome": others}
        names = [each.name for each in nightly.steps()]
        steps = [result | {"name": names[0]}]
        steps += [newer | {"name": name} for name in names[1:] if others]
        nightly.RESULTS.write_text(json.dumps({"steps": steps}))
        ages = {"abc1234def": age, "fed4321cba": 0}
        monkeypatch.setattr(nightly, "commits_since", ages.get)
        return nightly.check()

    return record


def test_a_nightly_result_that_is_red_or_missing_fails_the_gate(recorded, capsys):
    assert nightly.check() == 1
    assert recorded("failed") == 1
    assert "nightly: red on abc1234: full sizes" in capsys.readouterr().out


def test_a_nightly_result_older_than_60_commits_is_a_warning(recorded, capsys):
    for age, expected in [
        (60, "nightly: green on abc1234, 60 commits ago"),
        (61, "nightly: warning: the result of abc1234 is 61 commits old. Run"),
        (None, "nightly: warning: the result of abc1234 is not in this history. Run"),
    ]:
        assert recorded("passed", age) == 0
        assert expected in capsys.readouterr().out


def test_a_nightly_result_without_some_steps_is_not_called_green(recorded, capsys):
    assert recorded("passed", others="") == 0
    said = capsys.readouterr().out
    assert "nightly: warning: no result of" in said
    assert "nightly: incomplete on abc1234, 0 commits ago" in said


def test_a_nightly_step_that_was_not_run_is_named_with_its_reason(recorded, capsys):
    assert recorded("not run") == 0
    assert "nightly: full sizes was not run: no server" in capsys.readouterr().out


def test_a_few_tests_that_failed_beside_others_are_repeated_alone_and_named(
    monkeypatch, recorded, capsys
):
    stalled, wrong = "tests.e2e.test_one::test_stalled[a]", "tests.db.test_two::test_wrong"
    ran: list[str] = []

    def run(command: tuple[str, ...]) -> tuple[int, str]:
        ran.append(command[-1])
        return int("test_wrong" in command[-1]), ""

    monkeypatch.setattr(nightly, "_run_and_show", run)
    for failures, expected in [([stalled], "passed"), ([stalled, wrong], "failed")]:
        result = Result("full sizes", "pytest", "failed", 1, failures=failures)
        nightly._repeat(result)
        assert (result.outcome, result.repeated) == (expected, failures)
        assert result.failures == failures[1:]
    assert ran[1:] == ["tests/e2e/test_one.py::test_stalled[a]", "tests/db/test_two.py::test_wrong"]

    recorded("passed")
    nightly.record(Result("full sizes", "pytest", "passed", 1, repeated=[stalled]))
    assert nightly.check() == 0
    assert f"nightly: full sizes: failed once beside others: {stalled}" in capsys.readouterr().out


def test_a_run_of_one_step_leaves_the_commit_of_the_others(recorded):
    recorded("passed")
    nightly.record(Result("full sizes", "pytest", "passed", 1, commit="new"))
    commits = {step["name"]: step["commit"] for step in nightly.recorded()}
    assert commits.pop("full sizes") == "new"
    assert set(commits.values()) == {"fed4321cba"}


def test_an_audit_counts_only_if_it_reports_an_audited_package():
    unknown = {"name": "click", "skip_reason": "could not be audited"}
    sound = {"name": "json5", "version": "0.17.3", "vulns": []}
    faulty = {"name": "jinja2", "version": "2.0", "vulns": [{"id": "CVE-1"}]}
    for outcome, packages, expected in [
        ("passed", [unknown, sound], ("passed", [], "1 of 2 packages audited")),
        ("passed", [unknown], ("not run", [], "0 of 1 packages audited")),
        ("failed", [sound, faulty], ("failed", ["jinja2"], "2 of 2 packages audited")),
        ("failed", [], ("not run", [], "0 of 0 packages audited")),
    ]:
        result = Result("known vulnerabilities", "pip-audit", outcome, 1)
        said = json.dumps({"dependencies": packages, "fixes": []}) if packages else "no network"
        nightly.audit(result, f"progress\n{said}\n")
        assert (result.outcome, result.failures, *result.figures) == expected
        is_audited = result.outcome != "not run"
        assert result.reason == ("" if is_audited else "not audited: database unreachable")


SKIPPED = "the Rust workers are not built: run tools/rust"


def test_a_step_that_skipped_rust_tests_fails_if_cargo_is_installed(monkeypatch, capsys, recorded):
    for cargo, skips, expected in [
        ("/usr/bin/cargo", {SKIPPED: 3, "needs a browser": 1}, "failed"),
        ("/usr/bin/cargo", {"needs a browser": 1}, "passed"),
        (None, {SKIPPED: 3}, "passed"),
    ]:
        monkeypatch.setattr(shutil, "which", {"cargo": cargo}.get)
        result = Result("full sizes", "pytest", "passed", 1, skips=skips)
        nightly.require_rust(result, "")
        assert result.outcome == expected

        message = "3 tests with Rust workers were skipped, although cargo is installed."
        assert result.reason == (f"{message} Run tools/rust." if expected == "failed" else "")
    recorded("failed")
    assert "nightly: red on abc1234: full sizes: no server" in capsys.readouterr().out


def test_the_report_of_a_step_contains_the_reasons_of_skipped_tests(tmp_path):
    report = tmp_path / "report.xml"
    case = f'<testcase><skipped type="pytest.skip" message="{SKIPPED}"/></testcase>'
    report.write_text(f'<testsuites><testsuite tests="2">{case * 2}</testsuite></testsuites>')
    result = Result("full sizes", "pytest", "passed", 1)

    nightly._read_report(report, result)

    assert result.skips == {SKIPPED: 2}


def test_the_reason_of_skipped_rust_tests_ends_with_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(tools, "RUST", tmp_path)
    assert (tools.find_missing_rust() or "").endswith(nightly.RUN_TOOLS_RUST)
    (tmp_path / "complete").touch()
    assert (tools.find_missing_rust() or "").endswith(nightly.RUN_TOOLS_RUST)
