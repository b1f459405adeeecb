"""The schema that the reference pages show is the one that a fresh install makes."""

import pytest

from tools.dump_schema import MAJOR, TARGET, fresh_dump


@pytest.mark.feature("F25")
def test_the_dump_in_the_docs_is_up_to_date(pytestconfig):
    # It has a server of its own: once per run of the matrix is enough.
    if pytestconfig.getoption("--pg") != MAJOR:
        pytest.skip(f"the dump is made with PostgreSQL {MAJOR}")
    assert TARGET.exists(), "there is no docs/reference/schema.sql: run python -m tools.dump_schema"

    stale = TARGET.read_text(encoding="utf-8") != fresh_dump()

    assert not stale, "docs/reference/schema.sql is stale: run python -m tools.dump_schema"
