"""Every statement has its function and every function its statement, in every driver's words."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.resources import files
from types import ModuleType
from typing import Any, get_origin, get_type_hints

import pytest

from graphile_worker._sql.identifiers import Schemas, quote_identifier
from graphile_worker._sql.queries import (
    audit,
    claim,
    cleanup,
    cron,
    dashboard,
    diagnostics,
    ended_jobs,
    history,
    jobs,
    limits,
    metrics,
    migrations,
    outcomes,
    pauses,
    progress,
    search,
    shards,
    snapshot,
    storage,
    testing,
    unique_keys,
    workers,
)
from graphile_worker._sql.query import Query
from graphile_worker._sql.render import (
    ParameterStyle,
    list_script_statements,
    render,
    render_bytes,
    render_script,
    split_script,
)
from graphile_worker.jobs import JobSpec, RunAt
from graphile_worker.limits import ConcurrencyLimit, Limit
from tests.support.cases import for_each

SQL = files("graphile_worker._sql")
PLAIN = Schemas.from_names("jobs")
WILD = Schemas.from_names('a"b$1%s:x$gw$ü')

# One value for each type that the functions take.
SAMPLES: dict[Any, object] = {
    JobSpec: JobSpec("resize"),
    Schemas: PLAIN,
    RunAt | None: None,
    claim.JobPosition | None: (1, datetime.now(UTC)),
    bool: False,
    int: 1,
    int | None: None,
    str: "x",
    str | None: None,
    list[int]: [1],
    list[str]: ["x"],
    list[str] | None: None,
    Mapping[int, str]: {1: "x"},
    Mapping[str, Any]: {"host": "x"},
    datetime: datetime.now(UTC),
    datetime | None: None,
    timedelta: timedelta(0),
    timedelta | None: None,
    Mapping[int, datetime]: {0: datetime.now(UTC)},
    claim.OrphanedClaims: claim.OrphanedClaims({1}, {2}),
    Sequence[int]: [1],
    Sequence[JobSpec]: [JobSpec("resize")],
    Sequence[str | None]: [None],
    Sequence[claim.FailedAttempt]: [],
    Sequence[claim.ReleasedJob]: [],
    Sequence[history.KeptRun]: [],
    history.HistoryRing: history.HistoryRing(
        slot=0, started_at=(datetime.now(UTC),) * 9, keep=None, max_rows=None, now=datetime.now(UTC)
    ),
    Sequence[progress.ProgressReport]: [],
    Iterable[Limit]: [ConcurrencyLimit(1, name="x")],
    Limit: ConcurrencyLimit(1, name="x"),
    Sequence[limits.RentedSlot]: [],
    Sequence[tuple[str, JobSpec]]: [],
    search.Clauses: (),
}


def _stems(folder: str) -> list[str]:
    return sorted(path.name.removesuffix(".sql") for path in (SQL / folder).iterdir())


def _asks(function: object, module: ModuleType) -> bool:
    function = _whole(function)
    if not inspect.isfunction(function) or function.__module__ != module.__name__:
        return False
    return get_origin(get_type_hints(function).get("return")) is Query


def _whole(function: Any) -> Any:
    """Several statements that take the same are one function, given the name of each."""
    return function.func if isinstance(function, partial) else function


def _questions() -> list[tuple[str, Callable[..., Query[Any]]]]:
    return [
        (name, function)
        for module in (
            jobs,
            search,
            audit,
            claim,
            workers,
            snapshot,
            shards,
            cleanup,
            cron,
            storage,
            dashboard,
            diagnostics,
            history,
            ended_jobs,
            limits,
            metrics,
            migrations,
            outcomes,
            pauses,
            progress,
            testing,
            unique_keys,
        )
        for name, function in vars(module).items()
        if not name.startswith("_") and _asks(function, module)
    ]


STATEMENTS = _stems("statements")
SCRIPTS = [f"{folder}/{stem}" for folder in ("schema", "ext") for stem in _stems(folder)]
QUESTIONS = dict(_questions())


@pytest.mark.feature("F46")
def test_every_statement_has_one_function_and_every_function_one_statement():
    assert sorted(name for name, _ in _questions()) == STATEMENTS


@for_each(STATEMENTS)
def test_a_function_has_the_name_of_its_statement_and_an_argument_for_each_parameter(name):
    query = _sample_query(name)

    assert str(query.statement) == name
    assert _placeholders(render(name, PLAIN, ParameterStyle.NATIVE)) == set(
        range(1, len(query.args) + 1)
    )


@for_each(STATEMENTS)
def test_arguments_have_types_that_every_driver_takes(name):
    for value in _sample_query(name).args:
        plain = value if isinstance(value, list) else [value]
        assert all(each is None or type(each) in (str, int, bool) for each in plain)


@for_each(STATEMENTS)
def test_a_statement_starts_with_a_comment_about_its_purpose(name):
    first = _file(name).splitlines()[0]

    assert re.fullmatch(r"-- [A-Z].*[.?;:,\w]", first)


@for_each(STATEMENTS)
def test_a_statement_is_one_statement(name):
    assert _file(name).endswith(";\n")
    assert ";" not in render(name, PLAIN, ParameterStyle.NATIVE)


@for_each(STATEMENTS)
def test_a_statement_names_its_columns(name):
    text = render(name, PLAIN, ParameterStyle.NATIVE)

    assert not re.search(r"(select|returning)\s+\*|\.\*", text)


@for_each(STATEMENTS)
def test_a_statement_is_in_lower_case(name):
    code = re.sub(r"'[^']*'", "''", render(name, PLAIN, ParameterStyle.NATIVE))
    # The name of a collation.
    code = code.replace('"C"', '"c"')

    assert code == code.lower()


@for_each(STATEMENTS)
def test_no_comment_reaches_a_driver(name):
    for style in ParameterStyle:
        assert "--" not in render(name, PLAIN, style)


@pytest.mark.feature("F46")
@for_each(STATEMENTS)
def test_every_parameter_is_cast(name):
    text = render(name, PLAIN, ParameterStyle.NATIVE)

    assert re.findall(r"\$\d+(?!\d|::)", text) == []


@for_each(STATEMENTS)
def test_a_json_parameter_travels_as_text(name):
    # A json codec that the owner of a connection registered would encode it again.
    text = render(name, PLAIN, ParameterStyle.NATIVE)

    assert re.findall(r"\$\d+::jsonb?", text) == []


@pytest.mark.feature("F46")
@pytest.mark.parametrize("name", ["add_job", "reschedule_jobs"])
def test_functions_of_the_schema_are_called_with_named_arguments(name):
    assert "=> $1::" in render(name, PLAIN, ParameterStyle.NATIVE)


@pytest.mark.feature("F46")
def test_only_the_statements_that_add_jobs_directly_insert_jobs():
    found = [
        name
        for name in STATEMENTS
        if re.search(
            r"\binsert into \S*_private_jobs\b", render(name, PLAIN, ParameterStyle.NATIVE)
        )
    ]

    assert found == ["dedupe_job", "insert_job", "insert_jobs", "upsert_jobs"]


@pytest.mark.feature("F20")
@for_each(STATEMENTS)
def test_an_odd_schema_name_keeps_native_placeholders(name):
    assert _tamed(render(name, WILD, ParameterStyle.NATIVE)) == render(
        name, PLAIN, ParameterStyle.NATIVE
    )


@pytest.mark.feature("F20")
@for_each(STATEMENTS)
def test_an_odd_schema_name_survives_percent_formatting(name):
    values = dict.fromkeys(_names_of_parameters(name), "?")

    formatted = render(name, WILD, ParameterStyle.PYFORMAT) % values

    assert _tamed(formatted) == re.sub(r"\$\d+", "?", render(name, PLAIN, ParameterStyle.NATIVE))


@pytest.mark.feature("F20")
@for_each(STATEMENTS)
def test_sqlalchemy_finds_exactly_the_parameters_beside_an_odd_schema_name(name):
    # Imported here as it takes long: the other tests do without it.
    import sqlalchemy

    compiled = sqlalchemy.text(render(name, WILD, ParameterStyle.SQLALCHEMY)).compile()

    expected = re.sub(r"\$(\d+)", r"(:p\1)", render(name, PLAIN, ParameterStyle.NATIVE))
    assert sorted(compiled.params) == sorted(_names_of_parameters(name))
    assert _tamed(str(compiled)) == expected


@for_each(STATEMENTS)
def test_psycopg_gets_the_native_text_in_utf8(name):
    assert render_bytes(name, WILD).decode() == render(name, WILD, ParameterStyle.NATIVE)


@for_each(SCRIPTS)
def test_the_statements_of_a_script_together_are_the_script(script):
    whole = (SQL / f"{script}.sql").read_text(encoding="utf-8")

    together = "\n".join(f"{statement};" for statement in split_script(whole))

    assert _lines(together) == _lines(whole)


@for_each(SCRIPTS)
def test_a_script_begins_with_a_comment_and_has_no_parameters(script):
    whole = (SQL / f"{script}.sql").read_text(encoding="utf-8")

    assert whole.startswith("-- ")
    assert _placeholders(whole) == set()


@pytest.mark.feature("F20")
@for_each(SCRIPTS)
def test_a_schema_name_cannot_end_the_body_of_a_function(script):
    for name in list_script_statements(script):
        text = render(name, WILD, ParameterStyle.NATIVE)
        outside = text.replace(quote_identifier(WILD.shared), "")
        outside = outside.replace(quote_identifier(WILD.companion), "")
        tags = re.findall(r"\$gw_*\$", outside)
        assert len(tags) % 2 == 0
        assert "$gw$" not in tags


@for_each(SCRIPTS)
def test_printed_statements_keep_their_comments(script):
    text = render_script(script, WILD)

    assert all(
        render(name, WILD, ParameterStyle.NATIVE) in text for name in list_script_statements(script)
    )
    assert ":schema" not in text


def test_semicolons_inside_a_body_do_not_end_a_statement():
    script = "select 1;\n\ncreate function f() as $gw$\nbegin;\nend;\n$gw$;\n\nselect\n2;\n"

    assert split_script(script) == [
        "select 1",
        "create function f() as $gw$\nbegin;\nend;\n$gw$",
        "select\n2",
    ]


def _sample_query(name: str) -> Query[Any]:
    function = QUESTIONS[name]
    hints = get_type_hints(_whole(function))
    given = {each: SAMPLES[hints[each]] for each in inspect.signature(function).parameters}
    return function(**given)


def _file(name: str) -> str:
    return (SQL / "statements" / f"{name}.sql").read_text(encoding="utf-8")


def _placeholders(text: str) -> set[int]:
    return {int(number) for number in re.findall(r"\$(\d+)", text)}


def _names_of_parameters(name: str) -> list[str]:
    numbers = _placeholders(render(name, PLAIN, ParameterStyle.NATIVE))
    return [f"p{number}" for number in numbers]


def _tamed(text: str) -> str:
    """The text with the wild names put back to the plain ones."""
    companion = text.replace(quote_identifier(WILD.companion), quote_identifier(PLAIN.companion))
    return companion.replace(quote_identifier(WILD.shared), quote_identifier(PLAIN.shared))


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]
