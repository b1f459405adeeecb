"""The page of the SQL API has each function, argument and column of a migrated database."""

import re
from itertools import groupby

from tests.support.pages import ROOT
from tests.support.sql import Sql
from tests.support.tables import codes, rows, section

PAGE = "reference/sql.md"
TEXT = (ROOT / "docs" / PAGE).read_text(encoding="utf-8")

ARGUMENTS = """
select
  functions.proname,
  functions.proargnames[arguments.position],
  format_type(arguments.type, null),
  pg_get_function_arg_default(functions.oid, arguments.position::int)
from pg_proc as functions
cross join unnest(functions.proargtypes) with ordinality as arguments (type, position)
where functions.pronamespace = to_regnamespace(':schema')
order by functions.proname, arguments.position
"""

COLUMNS = """
select columns.attname, format_type(columns.atttypid, columns.atttypmod)
from pg_attribute as columns
where columns.attrelid = to_regclass(':schema.' || $1::text)
  and columns.attnum > 0
order by columns.attnum
"""

RELATIONS = """
select relname, relkind::text
from pg_class
where relnamespace = to_regnamespace(':schema')
  and relkind in ('r', 'v', 'm', 'c')
"""


def test_the_sql_page_has_each_function_and_its_arguments(sql: Sql):
    found = groupby(sql.run(ARGUMENTS), key=lambda row: row[0])

    functions = {name: [without_cast(row[1:]) for row in of] for name, of in found}

    told = {name: arguments(name) for name in re.findall(r"^## (\w+_\w+)$", TEXT, re.MULTILINE)}
    assert told == functions


def arguments(function: str) -> list[tuple[str, ...]]:
    # What comes under a heading of the third level is not the function's own.
    own, _, _ = section(PAGE, function).partition("\n### ")
    return [tuple("".join(codes(cell)) for cell in row[:3]) for row in rows(own)]


def without_cast(argument: tuple[str, str, str | None]) -> tuple[str, ...]:
    name, kind, default = argument
    return name, kind, (default or "").partition("::")[0]


def test_the_sql_page_has_the_columns_of_the_type_and_the_view(sql: Sql):
    _, _, of_type = section(PAGE, "add_jobs").partition("\n### ")
    of_view = section(PAGE, "The jobs view")

    assert columns(of_type) == sql.run(COLUMNS, "job_spec")
    assert columns(of_view) == sql.run(COLUMNS, "jobs")


def columns(text: str) -> list[tuple[str, ...]]:
    return [tuple("".join(codes(cell)) for cell in row[:2]) for row in rows(text)]


def test_the_page_names_all_tables_views_and_types(sql: Sql):
    told = {codes(row[0])[0]: "r" for row in rows(section(PAGE, "Private tables"))}

    assert told | {"jobs": "v", "job_spec": "c"} == dict(sql.run(RELATIONS))


def test_the_list_at_the_top_names_the_sections():
    first, _, _ = TEXT.partition("\n## ")

    linked = re.findall(r"\[`(\w+)`\]", first)

    assert linked == [*re.findall(r"^## (\w+_\w+)$", TEXT, re.MULTILINE), "jobs"]
