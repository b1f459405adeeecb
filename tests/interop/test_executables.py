"""One executable under Node and under Python: its input is the same."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.node import node_command

# Its environment as the kernel has it, its input, and how it was called.
PROGRAM = """#!/bin/sh
set -e
seen="seen/$GRAPHILE_WORKER_JOB_ID"
cat /proc/$$/environ > "$seen.environment"
cat > "$seen.input"
{ printf '%s\\n' "$0" "$#" "$*"; pwd; umask; } > "$seen.call"
echo done
echo done too >&2
"""

# A text of JSON for each payload; integers beyond 2^53 are not among them, as these keep their
# digits here.
PAYLOADS = [
    "{}",
    "null",
    "[]",
    '"text"',
    "0",
    "-0.0",
    '{"to": "ada@example.com", "n": 1.0, "deep": {"list": [1, 2.50, 1e21, 1e-7, true, null]}}',
    '{"b": 1, "10": 2, "9": 3, "a": 4, "b": 5, "01": 6, "__proto__": {"x": 1}}',
    r'"é € 😀 \u00e9 \ud83d\ude00 \ud800 \u2028 \u0000 \u001f \u007f \/ \b\f\n\r\t\" \\"',
    "[9007199254740991, 1e400, 123456789012345680.0, 0.1, 5e-324]",
    '{"": [[], {}, [[{}]]], "spaces":   "  "}',
    json.dumps({"large": "x" * 300_000, "many": list(range(10_000))}),
    '"\'; rm -rf / #"',
    '{"payload": {"payload": 1}}',
    '["$HOME", "`id`", "%s", "\\\\"]',
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"job_key": "plain"},
    {"job_key": 'kéy with spaces = and "quotes" 😀\nand a line'},
    {"priority": -32768},
    {"priority": 32767, "max_attempts": 32767},
    {"max_attempts": 1},
    {"run_at": "2000-01-01 00:00:00.000001+00"},
    {"run_at": "1969-12-31 23:59:59.999999+00"},
    {"run_at": "2024-02-29 12:34:56.789999+05:30"},
    {"run_at": "0099-03-01 01:02:03.5+00"},
    {"flags": ["one", "two"]},
]
OTHERS = {
    "PATH": os.environ["PATH"],
    # With an explicit locale, Python sets no LC_CTYPE.
    "LC_ALL": "C.UTF-8",
    "GRAPHILE_WORKER_JOB_KEY": "of another job",
    "GRAPHILE_WORKER_OTHER": "stays",
    "EMPTY": "",
    "ODD": "a=b 'c' \"d\"\n😀",
}

ADD = """
select id from :schema.add_job(
  'nested/report', $1::json,
  run_at => coalesce($2::timestamptz, now()),
  max_attempts => coalesce($3::int, 25),
  job_key => $4::text,
  priority => coalesce($5::int, 0),
  flags => $6::text[]
)
"""
COLUMNS = (
    "id, job_queue_id, task_id, payload, priority, run_at, attempts, max_attempts, last_error, "
    "created_at, updated_at, key, locked_at, locked_by, revision, flags"
)


class Both:
    """The same jobs, first run by the reference and then by us."""

    def __init__(self, database: Any, sql: Any, folder: Path) -> None:
        self._database = database
        self._sql = sql
        self._folder = folder

    def add(self, payload: str, **options: Any) -> int:
        names = ("run_at", "max_attempts", "job_key", "priority", "flags")
        added: int = self._sql.value(ADD, payload, *(options.get(name) for name in names))
        return added

    def keep(self) -> None:
        self._sql.run(f"create table kept as select {COLUMNS} from :schema._private_jobs")

    def restore(self) -> None:
        self._sql.run(
            f"insert into :schema._private_jobs ({COLUMNS}) overriding system value "
            f"select {COLUMNS} from kept"
        )

    def seen_by(self, command: list[str]) -> dict[str, bytes]:
        """What the executable saw, by job and kind."""
        seen = self._folder / "seen"
        seen.mkdir()
        # Node's command may exit with 1 on a busy machine though all is done.
        done = subprocess.run(
            command, cwd=self._folder, env=self._environment(), capture_output=True, timeout=100
        )
        assert self._sql.run("select id, last_error from :schema._private_jobs") == [], done
        found = {path.name: _in_order(path) for path in seen.iterdir()}
        seen.rename(self._folder / f"seen by {Path(command[0]).name}")
        return found

    def node(self) -> list[str]:
        return node_command("0.18", self._database.url, "--once", schema=self._database.schema)

    def python(self) -> list[str]:
        module = [sys.executable, "-m", "graphile_worker"]
        return [*module, "-c", self._database.url, "-s", self._database.schema, "--once"]

    def _environment(self) -> dict[str, str]:
        # Ours may be run from its sources.
        sources = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        return {**OTHERS, **sources, "PWD": str(self._folder)}


def _in_order(path: Path) -> bytes:
    """The content of a file; variables sorted, as a wrapper around Python may mix them."""
    content = path.read_bytes()
    if path.suffix == ".environment":
        return b"\0".join(sorted(content.split(b"\0")))
    return content


@pytest.fixture
def both(database, sql, tmp_path) -> Both:
    program = tmp_path / "tasks" / "nested" / "report.sh"
    program.parent.mkdir(parents=True)
    program.write_text(PROGRAM)
    program.chmod(0o755)
    return Both(database, sql, tmp_path)


@pytest.mark.feature("F121")
@pytest.mark.single_version
@pytest.mark.timeout(240)
def test_an_executable_gets_the_same_input_byte_for_byte_under_node(both, sql, figure):
    for payload in PAYLOADS:
        both.add(payload)
    for options in OPTIONS:
        both.add("{}", **options)
    tried = both.add("{}")
    sql.run("update :schema._private_jobs set attempts = 7 where id = $1", tried)
    both.keep()

    theirs = both.seen_by(both.node())
    both.restore()
    ours = both.seen_by(both.python())

    jobs = len(PAYLOADS) + len(OPTIONS) + 1
    assert len(theirs) == 3 * jobs
    assert ours == theirs
    assert b"\0GRAPHILE_WORKER_JOB_ATTEMPTS=8\0" in ours[f"{tried}.environment"]
    assert b"JOB_KEY" not in ours[f"{tried}.environment"]
    figure(f"environment, input and call of {jobs} jobs are the same under Node, byte for byte")


@pytest.mark.feature("F121")
@pytest.mark.single_version
@pytest.mark.timeout(120)
def test_an_integer_that_node_rounds_keeps_its_digits(both):
    job = both.add("[9007199254740993]")
    both.keep()

    theirs = both.seen_by(both.node())
    both.restore()
    ours = both.seen_by(both.python())

    assert theirs[f"{job}.input"] == b'{"payload":[9007199254740992]}'
    assert ours[f"{job}.input"] == b'{"payload":[9007199254740993]}'
