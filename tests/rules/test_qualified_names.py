"""SQL qualifies each function and table with its schema: decision record 15."""

import re
from pathlib import Path

import pytest

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.migration import REQUIRED_FUNCTIONS
from graphile_worker._sql.queries.migrations import FUNCTION_BODIES, compute_checksum
from graphile_worker._sql.render import ParameterStyle, render
from tests.support.sql_tokens import ROOT, calls, line_of, operators, relations, sql_files, tokens

FILES = sql_files()
SHARED = ROOT / "src/graphile_worker/_sql/schema"
PATH = "set search_path = pg_catalog, pg_temp"


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def place(path: Path, at: int) -> str:
    return f"{path.relative_to(ROOT)}:{line_of(read(path), at)}"


def test_every_function_call_names_its_schema():
    found = [
        f"{place(path, call.at)}: {call.name}"
        for path in FILES
        for call in calls(read(path))
        if call.schema is None and not call.may_be_unqualified
    ]

    assert found == []


def test_every_relation_of_the_catalog_is_named_with_its_schema():
    found = [
        f"{place(path, at)}: {name}"
        for path in FILES
        for is_qualified, name, at in relations(read(path))
        if not is_qualified
    ]

    assert found == []


def functions(path: Path) -> list[str]:
    """What stands before the body of each function that a file makes."""
    return re.findall(r"^create (?:or replace )?function .*?\bas \$\w+\$", read(path), re.M | re.S)


def test_functions_of_the_companion_and_of_deploy_have_a_fixed_search_path():
    made = [(path, text) for path in FILES for text in functions(path) if path.parent != SHARED]

    assert [str(path) for path, text in made if PATH not in text] == []
    assert made != []


def test_functions_of_the_shared_schema_have_no_settings_as_in_node():
    made = [text for path in FILES for text in functions(path) if path.parent == SHARED]

    assert [text for text in made if re.search(r"^set ", text, re.M)] == []
    assert len(made) == 7


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("select now()", ["now"]),
        ("select pg_catalog.now(), :schema.add_job($1::text)", []),
        (
            "select left(a, 1), count (*) from t left join (select 1) as u (left) on true",
            ["left", "count"],
        ),
        ("-- now()\nselect 'now()', e'it\\'s now()', \"now\" /2", []),
        ("select extract(epoch from x), coalesce(a, row(1), array(select 1)) in (1)", []),
        ("do $do$ begin perform format('%I', $x$a$x$); end $do$", ["format"]),
        ("select * from unnest(a, b) as u (a, b), unnest(a[1], b)", []),
        ("select * from unnest(f(a, b)) as u (a)", ["unnest", "f"]),
        ("grant select (a), insert (b, c), update (d) on table t to r", []),
        ("create table t (a int) partition by list (a)", []),
        ("select f.a, x over (partition by list(a)) from f order by list(a)", ["list", "list"]),
    ],
)
def test_the_scanner_finds_calls_and_nothing_else(text, names):
    found = [each for each in calls(text) if each.schema is None]

    assert [each.name for each in found if not each.may_be_unqualified] == names


def test_the_scanner_finds_operators_that_are_written_in_words():
    text = (
        "select count(*), a.* from a where x like 'y' -- <\n and n between 1 and 2 - 1 or b <> '<'"
    )

    assert operators(text) == {"~~", "!~~", ">=", "<=", "-", "<>"}


def test_the_scanner_reads_every_file_to_its_end():
    assert len(FILES) > 150
    for path in FILES:
        assert tokens(read(path)), path


def test_the_checksum_of_each_body_that_this_release_installs_is_recorded():
    schemas = Schemas.from_names("jobs")

    for function, (statement, checksums) in FUNCTION_BODIES.items():
        made, body, _ = render(statement, schemas, ParameterStyle.NATIVE).split("$gw$")
        assert f'create or replace function "jobs".{function}(' in made
        assert checksums[-1] == compute_checksum(body, schemas), (
            f"{function}: append {compute_checksum(body, schemas)}"
        )
        assert len(set(checksums)) == len(checksums)
    assert set(FUNCTION_BODIES) == REQUIRED_FUNCTIONS
