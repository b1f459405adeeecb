"""The fault catalog has each fault once, and every test that it names exists."""

import re
from collections import Counter

from tests.laboratory.history_checker import RULES
from tests.support.pages import ROOT
from tools.features import split_cells

PAGE = (ROOT / "docs/about/reliability.md").read_text(encoding="utf-8")
CATALOG = (ROOT / "tests/FAULTS.md").read_text(encoding="utf-8")

NUMBERS = [*map(str, range(1, 47)), "46b", "47", "48", "48b", *map(str, range(49, 88))]
FAULT = re.compile(r"^\| (\d+b?) \|.*\|$", re.MULTILINE)
TEST = re.compile(r"(tests/[\w/]+\.py)::(test_\w+)")
KINDS = ("tested", "not yet", "not injectable")


FAULTS = {match[1]: split_cells(match[0]) for match in FAULT.finditer(CATALOG)}


def kind_of(row: list[str]) -> str:
    """Tested, unless its last cell begins with something else."""
    return next((kind for kind in KINDS if row[-1].startswith(f"**{kind}**")), "tested")


def test_each_fault_of_the_catalog_has_one_row():
    assert [match[1] for match in FAULT.finditer(CATALOG)] == NUMBERS


def test_each_fault_has_five_cells():
    assert {number: row for number, row in FAULTS.items() if len(row) != 5 or not all(row)} == {}


def test_a_fault_names_its_tests_or_is_marked_as_untested():
    tested = {number: row[-1] for number, row in FAULTS.items() if kind_of(row) == "tested"}

    # Nothing else stands there: not "partly", and no test of which only the file is named.
    assert [number for number, cell in tested.items() if TEST.sub("", cell).strip("`, ")] == []


def test_the_catalog_counts_the_faults_with_a_test(figure):
    kinds = Counter(map(kind_of, FAULTS.values()))
    figure(f"faults of the catalog: {', '.join(f'{n} {kind}' for kind, n in kinds.items())}")

    told = re.search(
        r"(\d+) have a test, (\d+) have none yet, and (\d+) cannot\s+be\s+injected", CATALOG
    )

    assert told is not None
    assert [*map(int, told.groups())] == [kinds[kind] for kind in KINDS]


def test_every_test_that_is_named_exists():
    named = TEST.findall(CATALOG)

    missing = [f"{path}::{name}" for path, name in named if not defines(path, name)]

    assert len(named) > len(NUMBERS)
    assert missing == []


def defines(path: str, name: str) -> bool:
    file = ROOT / path
    return file.exists() and f"def {name}(" in file.read_text(encoding="utf-8")


def test_every_file_that_is_named_exists():
    named = set(re.findall(r"\btests/[\w/.]+\w", PAGE + CATALOG))

    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_rules_are_those_of_the_checker():
    rows = [split_cells(line) for line in PAGE.splitlines() if re.match(r"\| [IL]\d", line)]

    told = {rule.strip("`"): (invariant, what) for invariant, _, rule, what in rows if rule}

    assert told == RULES
