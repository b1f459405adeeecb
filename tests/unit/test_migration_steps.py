"""What a look at the ledger asks for."""

from typing import Any

import pytest

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.migration import (
    REQUIRED_FUNCTIONS,
    REQUIRED_RELATIONS,
    MigrationStep,
    choose_next_step,
    migration_sql,
    plan_check_schema,
)
from graphile_worker._sql.queries.migrations import CatalogState, Ledger
from graphile_worker.errors import (
    ConfigurationError,
    SchemaError,
    SchemaMissing,
    SchemaTooNew,
    SchemaTooOld,
)

SCHEMAS = Schemas.from_names("jobs")


def catalogue(**given: Any) -> CatalogState:
    full: dict[str, Any] = {
        "server_version": 180000,
        "has_schema": True,
        "has_ledger": True,
        "has_breaking_column": True,
        "functions": REQUIRED_FUNCTIONS,
        "relations": REQUIRED_RELATIONS,
        "has_ext_schema": True,
        "has_ext_ledger": True,
    }
    return CatalogState(**{**full, **given})


NOTHING = catalogue(has_schema=False, has_ledger=False, has_breaking_column=False)
NO_LEDGER = catalogue(has_ledger=False, has_breaking_column=False)
OLD_LEDGER = catalogue(has_breaking_column=False)
LEDGER = catalogue()


@pytest.mark.feature("F15", "F24")
@pytest.mark.parametrize(
    ("seen", "ledger", "move"),
    [
        (NOTHING, Ledger(0, 0, None), MigrationStep.CREATE_LEDGER),
        (NO_LEDGER, Ledger(0, 0, None), MigrationStep.CREATE_LEDGER),
        (OLD_LEDGER, Ledger(0, 0, None), MigrationStep.CREATE_LEDGER),
        (LEDGER, Ledger(0, 0, None), MigrationStep.INSTALL),
        (OLD_LEDGER, Ledger(1, 0, None), MigrationStep.WAIT),
        (OLD_LEDGER, Ledger(10, 0, None), MigrationStep.WAIT),
        (LEDGER, Ledger(17, 16, None), MigrationStep.WAIT),
        (LEDGER, Ledger(18, 16, None), MigrationStep.UPGRADE_TO_19),
        (LEDGER, Ledger(19, 19, True), MigrationStep.UPGRADE_TO_20),
        # Level 19 of another implementation, which does not call it breaking.
        (LEDGER, Ledger(19, 16, False), MigrationStep.READY),
        (LEDGER, Ledger(20, 19, True), MigrationStep.READY),
        (LEDGER, Ledger(21, 19, True), MigrationStep.READY),
        (LEDGER, Ledger(99, 20, True), MigrationStep.READY),
    ],
)
def test_the_next_move_follows_from_catalogue_and_ledger(seen, ledger, move):
    assert choose_next_step(SCHEMAS, seen, ledger) is move


@pytest.mark.feature("F24")
@pytest.mark.parametrize("ledger", [Ledger(21, 21, True), Ledger(30, 22, True)])
def test_an_unknown_breaking_level_is_rejected(ledger):
    with pytest.raises(SchemaTooNew) as caught:
        choose_next_step(SCHEMAS, LEDGER, ledger)

    assert caught.value.level == ledger.breaking_level
    assert caught.value.exit_code == 57


@pytest.mark.feature("F19")
@pytest.mark.parametrize("seen", [NOTHING, NO_LEDGER])
def test_a_check_of_a_missing_schema_names_how_to_install_it(seen):
    with pytest.raises(SchemaMissing, match=r"graphile-worker migrate --schema jobs"):
        _answered(seen)


def test_a_check_of_an_empty_ledger_raises_schema_missing():
    with pytest.raises(SchemaMissing):
        _answered(LEDGER, Ledger(0, 0, None))


@pytest.mark.feature("F24")
def test_a_check_of_an_old_schema_names_the_release_to_pass_through():
    with pytest.raises(SchemaTooOld, match="graphile-worker@0.18.0"):
        _answered(LEDGER, Ledger(10, 3, None))


@pytest.mark.feature("F6")
@pytest.mark.parametrize("version", [100023, 130011])
def test_an_older_server_is_rejected_with_its_version(version):
    with pytest.raises(SchemaError, match=rf"{version // 10000}\.{version % 10000} is too old"):
        _answered(catalogue(server_version=version))


def test_an_incomplete_schema_is_reported_with_what_it_lacks():
    lacking = catalogue(
        functions=REQUIRED_FUNCTIONS - {"add_job"}, relations=REQUIRED_RELATIONS - {"jobs"}
    )

    with pytest.raises(SchemaError, match="it lacks: add_job, jobs"):
        _answered(lacking, Ledger(20, 19, True), lacking)


@pytest.mark.parametrize("level", [18, 19, 20, 21])
def test_a_check_of_a_usable_schema_returns_its_level(level):
    assert _answered(LEDGER, Ledger(level, 16, level == 19), LEDGER) == level


@pytest.mark.feature("F24")
@pytest.mark.parametrize("level", [1, 10, 17, 20, 21, -1])
def test_sql_for_unsupported_levels_is_rejected(level):
    with pytest.raises(ConfigurationError, match=f"got {level}"):
        migration_sql("jobs", from_level=level)


@pytest.mark.feature("F20", "F24")
@pytest.mark.parametrize("level", [0, 18, 19])
def test_the_sql_of_a_migration_names_the_schemas_that_were_chosen(level):
    text = migration_sql('a"b', "beside", from_level=level)

    assert '"a""b".' in text
    assert '"beside".' in text
    assert "graphile_worker" not in text


def _answered(*answers: object) -> int:
    """What `checking` makes of these answers, one for each question."""
    plan = plan_check_schema(SCHEMAS)
    next(plan)
    try:
        for answer in answers:
            plan.send(answer)
    except StopIteration as end:
        return int(end.value)
    raise AssertionError("more questions than answers")
