"""Findings, commands and SQL of the doctor, without a database."""

import re
from pathlib import Path

import pytest
from psycopg import OperationalError

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.diagnostics import SharedMigration
from graphile_worker._sql.remedies import format_remedy
from graphile_worker.ops import diagnostics
from graphile_worker.ops.diagnostics import connectivity
from graphile_worker.ops.diagnostics.findings import FindingId, Severity
from graphile_worker.ops.diagnostics.installation import detect_installer
from graphile_worker.ops.text import format_command, limit_lines

TESTS = Path(__file__).parent.parent
PLAIN = Schemas.from_names("graphile_worker")
ODD = Schemas.from_names("a b")


@pytest.mark.parametrize(
    ("message", "id", "advice"),
    [
        ('FATAL:  role "ann" does not exist', FindingId.ROLE_MISSING, "as a member"),
        ('FATAL:  database "shop" does not exist', FindingId.DATABASE_MISSING, "Name another"),
        ("password authentication failed for user", FindingId.UNREACHABLE, "the right password"),
        ("no pg_hba.conf entry for host", FindingId.UNREACHABLE, "pg_hba.conf allow this role"),
        ("FATAL:  sorry, too many clients already", FindingId.UNREACHABLE, "max_connections"),
        ("FATAL:  the database system is starting up", FindingId.UNREACHABLE, "Wait"),
        ("Connection refused\n\tIs the server", FindingId.UNREACHABLE, "Start the server"),
        ("could not translate host name", FindingId.UNREACHABLE, "host's name"),
        ("connection timeout expired", FindingId.UNREACHABLE, "firewall"),
        ("", FindingId.UNREACHABLE, "whether the server is running"),
    ],
)
def test_a_rejected_connection_has_advice(message, id, advice):
    finding = connectivity.build_unreachable_finding(OperationalError(message), PLAIN)

    assert (finding.id, finding.severity) == (id, Severity.CRITICAL)
    assert advice in finding.advice
    assert all("\n" not in line for line in finding.evidence)


@pytest.mark.parametrize(
    ("levels", "installer"),
    [
        ([SharedMigration(n, 1.0, n == 19) for n in range(1, 21)], "Python"),
        ([SharedMigration(n, float(n), n == 19) for n in range(1, 21)], "Node"),
        ([SharedMigration(n, float(n), False) for n in range(1, 21)], "Rust"),
        ([SharedMigration(n, float(n), False) for n in range(1, 19)], "Node or Rust"),
    ],
)
def test_a_ledger_shows_its_installer(levels, installer):
    assert detect_installer(levels) == installer


def test_a_command_names_the_schema_unless_it_is_the_default():
    assert format_command(PLAIN, "migrate") == "graphile-worker migrate"
    assert format_command(ODD, "workers recover", "x y") == (
        "graphile-worker workers recover --schema 'a b' 'x y'"
    )


def test_values_in_sql_are_quoted():
    wild = Schemas.from_names('a"b:schema')

    text = format_remedy("restart_sequence", wild, sequence=':schema"; drop', first=3)

    assert text == 'alter sequence "a""b:schema".":schema""; drop" restart with 3;'
    assert format_remedy("rollback_prepared", PLAIN, name="it's \\ :schema") == (
        "rollback prepared E'it''s \\\\ :schema';"
    )


def test_many_lines_are_cut_short():
    assert limit_lines(["x"] * 5) == ("x",) * 5
    assert limit_lines(["x"] * 1006) == (*["x"] * 5, "and 1,001 more")


def test_every_finding_has_a_test_that_names_it():
    texts = [
        (TESTS / place).read_text(encoding="utf-8")
        for place in (
            "db/test_diagnostics.py",
            "e2e/test_doctor_command.py",
            "unit/test_queue_diagnosis.py",
        )
    ]
    tests = "\n".join(texts)

    named = {each for each in FindingId if each.value in tests or f"FindingId.{each.name}" in tests}

    assert named == set(FindingId)


def test_every_remedy_is_used_and_exists():
    sources = Path(diagnostics.__file__).parent
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources.glob("*.py"))
    used = set(re.findall(r"""format_remedy\(\s*"(\w+)\"""", text))

    assert used == {path.stem for path in (sources.parent.parent / "_sql/remedies").glob("*.sql")}
