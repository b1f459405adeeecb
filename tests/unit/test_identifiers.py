"""Names of schemas: quoting, limits, and the companion's name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphile_worker._sql.identifiers import (
    MAX_NAME_BYTES,
    Schemas,
    derive_companion_schema,
    quote_identifier,
)
from graphile_worker.errors import ConfigurationError

LETTERS = st.characters(blacklist_categories=["Cs"], blacklist_characters="\x00")
NAMES = st.text(LETTERS, min_size=1, max_size=MAX_NAME_BYTES).filter(
    lambda n: len(n.encode()) <= MAX_NAME_BYTES and not n.startswith("pg_")
)


@pytest.mark.feature("F20")
@pytest.mark.parametrize(
    ("name", "quoted"),
    [("jobs", '"jobs"'), ('a"b', '"a""b"'), ('"', '""""'), ("a b", '"a b"'), ("Ü$1%s", '"Ü$1%s"')],
)
def test_a_name_is_quoted_with_its_quotes_doubled(name, quoted):
    assert quote_identifier(name) == quoted


@given(NAMES)
def test_what_is_quoted_can_be_read_back(name):
    quoted = quote_identifier(name)

    assert quoted[0] == quoted[-1] == '"'
    assert quoted[1:-1].replace('""', '"') == name
    assert quoted[1:-1].replace('""', "").count('"') == 0


@pytest.mark.feature("F15")
def test_the_companion_is_named_after_the_schema():
    assert derive_companion_schema("graphile_worker") == "graphile_worker_ext"
    assert Schemas.from_names("x") == Schemas("x", "x_ext")


@pytest.mark.feature("F21")
@given(NAMES)
def test_the_companion_is_another_name_that_postgresql_does_not_cut(name):
    schemas = Schemas.from_names(name)

    assert schemas.shared == name
    assert schemas.companion != name
    assert 0 < len(schemas.companion.encode()) <= MAX_NAME_BYTES


@pytest.mark.feature("F21")
@given(NAMES)
def test_the_companions_name_is_always_the_same(name):
    assert derive_companion_schema(name) == derive_companion_schema(name)


@pytest.mark.feature("F21")
@pytest.mark.parametrize("letter", ["x", "ü", "😀"])
def test_long_names_with_the_same_prefix_have_different_companions(letter):
    beginning = letter * (60 // len(letter.encode()))
    names = [f"{beginning}{number}" for number in range(10)]

    assert len({derive_companion_schema(name) for name in names}) == 10


@pytest.mark.feature("F21")
@pytest.mark.parametrize("name", ["x" * 59, "ü" * 29])
def test_the_suffix_is_plain_as_long_as_it_fits(name):
    assert derive_companion_schema(name) == f"{name}_ext"


@pytest.mark.feature("F21")
@pytest.mark.parametrize("name", ["x" * 63, "ü" * 31, "😀" * 15])
def test_a_name_may_have_63_bytes(name):
    assert Schemas.from_names(name).shared == name


@pytest.mark.feature("F20", "F21")
@pytest.mark.parametrize("name", ["", 7, "x" * 64, "ü" * 32, "a\x00b", "\ud800"])
@pytest.mark.parametrize("argument", ["schema", "ext_schema"])
def test_an_invalid_name_is_rejected_with_the_name_of_the_argument(name, argument):
    given = {"schema": "jobs", argument: name}

    with pytest.raises(ConfigurationError, match=rf"^{argument} "):
        Schemas.from_names(**given)


def test_both_schemas_cannot_be_one():
    with pytest.raises(ConfigurationError, match="must differ"):
        Schemas.from_names("jobs", "jobs")


def test_the_companion_can_be_given():
    assert Schemas.from_names("jobs", "beside") == Schemas("jobs", "beside")


def test_a_reserved_schema_is_rejected_with_what_to_do():
    for name in ("information_schema", "pg_catalog", "pg_toast", "pg_temp", "pg_jobs"):
        for names in ({"schema": name}, {"schema": "jobs", "ext_schema": name}):
            with pytest.raises(ConfigurationError) as rejected:
                Schemas.from_names(**names)
            assert f"is '{name}', which PostgreSQL reserves" in str(rejected.value)
            assert "Choose another name" in str(rejected.value)
    assert Schemas.from_names("pgjobs").shared == "pgjobs"
