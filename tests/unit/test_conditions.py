"""Conditions of filters in statements: every one in every driver's words, parameters in order."""

import re
from importlib.resources import files

import pytest
import sqlalchemy

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.render import ParameterStyle, render
from graphile_worker._sql.statement import Clause, Condition, Statement, collect_args

SQL = files("graphile_worker._sql")
PLAIN = Schemas.from_names("jobs")
WILD = Schemas.from_names('a"b$1%s:x$gw$ü')

CONDITIONS = sorted(path.name.removesuffix(".sql") for path in (SQL / "conditions").iterdir())
TAKING = sorted(
    path.name.removesuffix(".sql")
    for path in (SQL / "statements").iterdir()
    if re.search(":conditions|:chosen_jobs", path.read_text(encoding="utf-8"))
)


def parameters(text: str) -> int:
    return max(map(int, re.findall(r"\$(\d+)", text)), default=0)


def condition(name: str) -> Condition:
    text = (SQL / "conditions" / f"{name}.sql").read_text(encoding="utf-8")
    # The dead of a state stand in a fragment.
    return Condition(name, tuple(f"{name}{n}" for n in range(1, parameters(text) + 1)))


ALL = (
    *(Clause((condition(name),)) for name in CONDITIONS),
    Clause(tuple(map(condition, CONDITIONS)), is_negated=True),
)


def test_statements_take_conditions():
    assert {"list_jobs", "count_jobs", "find_job_ids", "retry_jobs"} <= set(TAKING)


@pytest.mark.parametrize("name", CONDITIONS)
def test_a_condition_starts_with_a_comment_about_when_it_is_true(name):
    text = (SQL / "conditions" / f"{name}.sql").read_text(encoding="utf-8")

    assert re.match(r"-- [A-Z].*\w[.,;:]?\n", text)
    assert ";" not in re.sub("^--.*$", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize("statement", TAKING)
def test_parameters_of_conditions_come_after_those_of_the_statement(statement):
    own = parameters(render(statement, PLAIN, ParameterStyle.NATIVE))

    text = render(Statement.with_clauses(statement, ALL), PLAIN, ParameterStyle.NATIVE)

    assert parameters(text) == own + len(collect_args(ALL))
    numbers = {int(number) for number in re.findall(r"\$(\d+)", text)}
    assert numbers == set(range(1, parameters(text) + 1))


@pytest.mark.parametrize("statement", TAKING)
def test_parameters_are_cast_and_json_is_none_of_them(statement):
    text = render(Statement.with_clauses(statement, ALL), PLAIN, ParameterStyle.NATIVE)

    assert re.findall(r"\$\d+(?!\d|::)", text) == []
    assert re.findall(r"\$\d+::jsonb?", text) == []
    assert "--" not in text


@pytest.mark.feature("F20")
@pytest.mark.parametrize("statement", TAKING)
def test_beside_a_wild_schema_name_every_style_has_the_same_parameters(statement):
    chosen = Statement.with_clauses(statement, ALL)
    count = parameters(render(chosen, PLAIN, ParameterStyle.NATIVE))
    names = {f"p{n}" for n in range(1, count + 1)}

    formatted = render(chosen, WILD, ParameterStyle.PYFORMAT) % dict.fromkeys(names, "?")
    compiled = sqlalchemy.text(render(chosen, WILD, ParameterStyle.SQLALCHEMY)).compile()

    assert "%%" not in formatted
    assert set(compiled.params) == names


def test_without_conditions_all_jobs_are_selected():
    assert "where true" in render(
        Statement.with_clauses("count_jobs", ()), PLAIN, ParameterStyle.NATIVE
    )


def test_a_negated_clause_treats_null_as_false():
    clause = Clause((Condition("key", (["a"],)), Condition("no_key")), is_negated=True)

    text = render(Statement.with_clauses("count_jobs", [clause]), PLAIN, ParameterStyle.NATIVE)

    assert re.search(r"\(\(jobs\.key = any .*\) or \(jobs\.key is null\)\) is not true", text)
