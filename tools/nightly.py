"""Run the nightly tier and record its result: `just nightly`.

The gate runs every rule at a small size. The nightly tier runs the tests that take longer or
measure the machine: full counts, new random seeds, rates and times, every version of Python and
PostgreSQL, the oldest dependencies and known vulnerabilities. The last result is
tests/nightly/results.json. The gate rejects a change while that result is red (`python -m
tools.nightly --check`).
"""

import argparse
import json
import math
import os
import platform
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tools.pages import ROOT

RESULTS = ROOT / "tests" / "nightly" / "results.json"
MAX_AGE_COMMITS = 60

# Each Python and each PostgreSQL at least once, besides the two pairs of the gate. `just test-all`
# runs all 20 pairs.
PAIRS = (("3.11", 14), ("3.12", 16), ("3.13", 17), ("3.14", 15))
EVERY_VERSION = ("tests/unit", "tests/db", "tests/integrations")
# This pair also runs what the gate runs with its newest pair alone, in a schema whose name needs
# quoting.
ODD_SCHEMA = ("3.14", 15)

PYTEST = (sys.executable, "-m", "pytest", "--tier", "nightly", "-p", "no:cacheprovider")

# One test at a time per process, so that the longest, which come first, run at the same time.
PARALLEL = ("-n", "4", "--dist", "load", "--maxschedchunk", "1")
ALONE = ("-n", "0")

# A few tests that failed beside others are repeated alone, because the others may have stalled
# them. The result names them.
MAX_REPEATED = 5

# The exit code of pytest that ran all tests, of which some failed.
TESTS_FAILED = 1

# Tests that the gate does not run, or not at full size.
LARGER = "(nightly or slow_io or sized) and not serial"

# One run at a time: its workers have a lease of 2 s. Beside other tests they lose it so often that
# two minutes are not enough for the remaining jobs.
LABORATORY = "tests/laboratory"

# The end of the reason for which a test with Rust workers is skipped.
RUN_TOOLS_RUST = "run tools/rust"

AUDIT = (
    *("uvx", "pip-audit@2.10.1", "--disable-pip", "--require-hashes"),
    *("--format", "json", "--requirement", "requirements-dev.txt"),
    # The other locks are parts of that one.
    *("--requirement", "requirements-uv.txt"),
)


@dataclass(frozen=True)
class Step:
    """One part of the tier: a command whose exit code is 0 if it passed."""

    name: str
    command: tuple[str, ...]
    # The command ends with pytest, so that an argument for its report can follow.
    has_report: bool = True
    judge: Callable[["Result", str], None] | None = None
    # Its tests run beside each other, so some may fail only for lack of a processor.
    is_parallel: bool = False


@dataclass
class Result:
    """The result of a step, with its commit and machine."""

    name: str
    command: str
    outcome: str
    seconds: int
    commit: str = field(default_factory=lambda: _git("rev-parse", "HEAD"))
    date: str = field(default_factory=lambda: f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC")
    machine: str = field(default_factory=lambda: machine())
    tests: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    # The tests that failed beside others and were run again alone.
    repeated: list[str] = field(default_factory=list)
    # How many tests were skipped for each reason.
    skips: dict[str, int] = field(default_factory=dict)
    figures: list[str] = field(default_factory=list)
    reason: str = ""


def steps() -> list[Step]:
    python = sys.executable
    cells = [
        Step(
            f"Python {version}, PostgreSQL {server}",
            (python, "-m", "nox", "-s", f"tests(python='{version}', pg={server})", "--")
            + (("--gw-schema", "odd") if (version, server) == ODD_SCHEMA else ())
            + EVERY_VERSION,
        )
        for version, server in PAIRS
    ]
    return [
        Step(
            "full sizes",
            (*PYTEST, *PARALLEL, "-m", LARGER, f"--ignore={LABORATORY}"),
            judge=require_rust,
            is_parallel=True,
        ),
        Step("laboratory", (*PYTEST, *ALONE, "-m", LARGER, LABORATORY)),
        Step("rates and times", (*PYTEST, *ALONE, "-m", "serial"), judge=require_rust),
        *cells,
        Step("oldest dependencies", (python, "-m", "nox", "-s", "lowest", "--", *EVERY_VERSION)),
        Step("known vulnerabilities", AUDIT, has_report=False, judge=audit),
    ]


def require_rust(result: Result, output: str) -> None:
    """Fail a step that skipped the tests with Rust workers on a machine that can build these."""
    skipped = sum(count for why, count in result.skips.items() if why.endswith(RUN_TOOLS_RUST))
    if skipped and shutil.which("cargo"):
        result.outcome = "failed"
        result.reason = (
            f"{skipped} tests with Rust workers were skipped, although cargo is installed. "
            "Run tools/rust."
        )


def audit(result: Result, output: str) -> None:
    """Read the result of an audit, which counts only if it reports an audited package."""
    report = re.search(r'^\{"dependencies".*$', output, re.MULTILINE)
    packages = json.loads(report[0])["dependencies"] if report else []
    audited = [each for each in packages if "skip_reason" not in each]
    result.figures.append(f"{len(audited)} of {len(packages)} packages audited")
    result.failures = [each["name"] for each in audited if each["vulns"]]
    if not audited:
        result.outcome, result.reason = "not run", "not audited: database unreachable"


def main() -> None:
    parser = argparse.ArgumentParser(prog="just nightly", description=__doc__)
    parser.add_argument("--check", action="store_true", help="Check the recorded result.")
    parser.add_argument("--only", metavar="STEP", help="Run the steps whose name contains STEP.")
    arguments = parser.parse_args()
    if arguments.check:
        sys.exit(check())
    # Tests that are repeated draw the same seeds, which may be part of their names.
    os.environ.setdefault("GW_RANDOM_SEED", secrets.token_hex(8))
    chosen = [step for step in steps() if (arguments.only or "") in step.name]
    outcomes = set()
    for step in chosen:
        result = run(step)
        record(result)
        if result.reason:
            print(f"{step.name}: {result.outcome}: {result.reason}")
        outcomes.add(result.outcome)
    print(f"\nwrote {RESULTS.relative_to(ROOT)}")
    sys.exit(1 if "failed" in outcomes else 0)


def run(step: Step) -> Result:
    print(f"\n== {step.name} ==", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        report_arguments = (f"--junitxml={report}",) if step.has_report else ()
        started_at = time.monotonic()
        code, output = _run_and_show((*step.command, *report_arguments))
        result = Result(
            name=step.name,
            command=" ".join(Path(part).name if "/" in part else part for part in step.command),
            outcome="passed" if code == 0 else "failed",
            seconds=round(time.monotonic() - started_at),
        )
        if report.exists():
            _read_report(report, result)
    are_few = 0 < len(result.failures) <= MAX_REPEATED
    if step.is_parallel and code == TESTS_FAILED and are_few:
        _repeat(result)
    if step.judge:
        step.judge(result, output)
    return result


def _repeat(result: Result) -> None:
    """Run the failed tests again, alone."""
    print(f"\n== {result.name}: failed tests, alone ==", flush=True)
    result.repeated, result.failures = result.failures, []
    for name in result.repeated:
        module, _, test = name.partition("::")
        code, _ = _run_and_show((*PYTEST, *ALONE, f"{module.replace('.', '/')}.py::{test}"))
        if code != 0:
            result.failures.append(name)
    result.outcome = "failed" if result.failures else "passed"


def _run_and_show(command: tuple[str, ...]) -> tuple[int, str]:
    try:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    except FileNotFoundError as error:
        return 127, str(error)
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line)
    return process.wait(), "".join(lines)


def _read_report(path: Path, result: Result) -> None:
    """Take counts, names of failed tests and figures from pytest's report."""
    for suite in ElementTree.parse(path).iter("testsuite"):
        result.tests = {name: int(suite.get(name, 0)) for name in ("tests", "skipped")}
    for case in ElementTree.parse(path).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            result.failures.append(f"{case.get('classname')}::{case.get('name')}")
        if (skipped := case.find("skipped")) is not None:
            reason = skipped.get("message", "")
            result.skips[reason] = result.skips.get(reason, 0) + 1
        for each in case.iter("property"):
            if each.get("name") == "figure":
                result.figures.append(str(each.get("value")))


def record(result: Result) -> None:
    """Write the result of this step to the file, in place of the previous one."""
    by_name = {each["name"]: each for each in recorded()}
    by_name[result.name] = asdict(result)
    in_order = [by_name[step.name] for step in steps() if step.name in by_name]
    text = json.dumps({"steps": in_order}, indent=2, ensure_ascii=False)
    RESULTS.write_text(text + "\n", encoding="utf-8")


def machine() -> str:
    """Describe this machine in a line."""
    cpu = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores of "
        f"{cpu[1] if cpu else platform.processor()}, {memory:.0f} GiB"
    )


def check() -> int:
    """Return 1 for a red result. Warn about an old one."""
    last = recorded()
    if not last:
        print("nightly: no result is recorded. Run `just nightly`.")
        return 1
    if failed := [step for step in last if step["outcome"] == "failed"]:
        for step in failed:
            reason = f": {step['reason']}" if step.get("reason") else ""
            print(f"nightly: red on {step['commit'][:7]}: {step['name']}{reason}")
        return 1
    for step in last:
        if step["outcome"] == "not run":
            print(f"nightly: {step['name']} was not run: {step['reason']}")
        if alone := step.get("repeated"):
            print(f"nightly: {step['name']}: failed once beside others: {', '.join(alone)}")
    if missing := {step.name for step in steps()} - {step["name"] for step in last}:
        print(f"nightly: warning: no result of {', '.join(sorted(missing))}. Run `just nightly`.")
    ages = {commit: commits_since(commit) for commit in {step["commit"] for step in last}}
    oldest, age = max(ages.items(), key=lambda each: math.inf if each[1] is None else each[1])
    if age is None or age > MAX_AGE_COMMITS:
        since = "not in this history" if age is None else f"{age} commits old"
        print(f"nightly: warning: the result of {oldest[:7]} is {since}. Run `just nightly`.")
    else:
        outcome = "incomplete" if missing else "green"
        print(f"nightly: {outcome} on {oldest[:7]}, {age} commits ago")
    return 0


def recorded() -> list[dict[str, Any]]:
    """Return the steps of the result file."""
    if not RESULTS.exists():
        return []
    results: list[dict[str, Any]] = json.loads(RESULTS.read_text(encoding="utf-8"))["steps"]
    return results


def commits_since(commit: str) -> int | None:
    """Count the commits after this one. Return None if the history does not contain it."""
    try:
        return int(_git("rev-list", "--count", f"{commit}..HEAD"))
    except subprocess.CalledProcessError:
        return None


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


if __name__ == "__main__":
    main()
