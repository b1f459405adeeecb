"""Checks of the installed schemas: their levels, their completeness, and their installer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.companion import INDEX_STEP
from graphile_worker._sql.plans.migration import (
    MIN_LEVEL,
    REQUIRED_FUNCTIONS,
    REQUIRED_RELATIONS,
)
from graphile_worker._sql.queries import diagnostics, migrations
from graphile_worker._sql.queries.diagnostics import (
    CompanionMigration,
    ObjectAccess,
    SharedMigration,
)
from graphile_worker._sql.queries.migrations import (
    EXT_STEPS,
    INDEXES,
    LATEST_LEVEL,
    CatalogState,
    ForeignObject,
    IndexState,
)
from graphile_worker._sql.query import Plan
from graphile_worker.errors import SchemaTooOld
from graphile_worker.ops.diagnostics.context import DoctorContext
from graphile_worker.ops.diagnostics.findings import Finding, FindingId, Severity
from graphile_worker.ops.diagnostics.permissions import format_missing_privileges
from graphile_worker.ops.text import format_command, limit_lines

# The Rust worker creates these at its levels 20 and 22.
RUST_TABLES = ("_private_workers", "_private_job_retirements")

REGISTRY_TABLES = ("pools", "recoveries")

# What follows if workers lack privileges on tables of the companion schema.
PRIVILEGE_EFFECTS = (
    ((*REGISTRY_TABLES, "migrations"), "jobs of a dead worker may stay locked for four hours"),
    (("pauses",), "workers may run jobs of paused tasks, and may not end pauses in time"),
    (("unique_keys",), "jobs with unique keys may not be added, and expired keys stay"),
)

RUST_UPGRADE_ADVICE = (
    "Let the Rust worker upgrade it to its level 21 or newer, and watch sequence-fill until then. "
)

ID_USE = "every added job uses up an id of its task and of its queue"


@dataclass(frozen=True, slots=True)
class SchemaState:
    """The content of the catalog and of both ledgers, as far as this role can read them."""

    catalog: CatalogState
    access: tuple[ObjectAccess, ...]
    indexes: IndexState
    foreign_objects: tuple[ForeignObject, ...]
    levels: tuple[SharedMigration, ...] = ()
    steps: tuple[CompanionMigration, ...] = ()

    @property
    def level(self) -> int:
        """The level of the shared schema."""
        return max((each.id for each in self.levels), default=0)

    @property
    def is_rust_schema(self) -> bool:
        """Whether the Rust worker installed the schema."""
        return _is_rust_ledger(self.levels)

    @property
    def shared_access(self) -> list[ObjectAccess]:
        """The access of this role to the shared schema."""
        return [each for each in self.access if not each.is_companion]

    @property
    def companion_access(self) -> list[ObjectAccess]:
        """The access of this role to the companion schema."""
        return [each for each in self.access if each.is_companion]

    @property
    def is_limited(self) -> bool:
        """Whether this role can read the queue but neither add nor claim jobs."""
        jobs = get_access(self.shared_access, "_private_jobs")
        return (
            jobs is not None
            and jobs.can_use_schema
            and {"insert", "update"} <= set(jobs.missing_privileges)
        )


def get_access(access: list[ObjectAccess], name: str) -> ObjectAccess | None:
    """Get the access to a table or function by its name."""
    return next((each for each in access if each.name == name), None)


def plan_inspect_schema(schemas: Schemas) -> Plan[SchemaState]:
    """Read the catalog, then the ledgers that exist and that this role can read."""
    catalog = yield migrations.inspect_database(schemas)
    access = yield diagnostics.inspect_access(schemas)
    indexes = yield migrations.inspect_indexes(schemas)
    foreign = tuple((yield migrations.find_foreign_objects(schemas)))
    if foreign:
        # Even a read could run code of the role that owns the companion schema.
        access = [each for each in access if not each.is_companion]
    state = SchemaState(catalog, tuple(access), indexes, foreign)
    levels = yield from _plan_read_levels(state)
    ledger = get_access(state.companion_access, "migrations")
    steps: list[CompanionMigration] = []
    if ledger is not None and ledger.is_readable:
        steps = yield diagnostics.get_ext_history()
    return replace(state, levels=tuple(levels), steps=tuple(steps))


def _plan_read_levels(state: SchemaState) -> Plan[list[SharedMigration]]:
    ledger = get_access(state.shared_access, "migrations")
    if ledger is None or not ledger.is_readable:
        return []
    if state.catalog.has_breaking_column:
        levels: list[SharedMigration] = yield diagnostics.get_ledger_history()
        return levels
    row = yield migrations.get_ledger_level()
    return [SharedMigration(row.level, 0.0, False)] if row.level else []


def detect_installer(levels: Sequence[SharedMigration]) -> str:
    """Detect which implementation installed the shared schema.

    Python writes all levels at one time, the others one after the other.
    """
    if _is_rust_ledger(levels):
        return "Rust"
    if len(levels) > 1 and levels[0].applied_at == levels[-1].applied_at:
        return "Python"
    return "Node" if levels[-1].id >= 19 else "Node or Rust"


def _is_rust_ledger(levels: Sequence[SharedMigration]) -> bool:
    # Level 19 of Node is marked as breaking, level 19 of Rust is not.
    return any(each.id == 19 and not each.is_breaking for each in levels)


def build_facts(state: SchemaState, schemas: Schemas) -> Iterator[tuple[str, str]]:
    """Describe the installed schemas."""
    if state.levels:
        jobs = get_access(state.shared_access, "_private_jobs")
        owner = f", owned by {jobs.owner}" if jobs else ""
        level = f"level {state.level}, installed by {detect_installer(state.levels)}"
        # Old ledgers have no time.
        at = state.levels[0].applied_at
        day = f" on {_format_time(at)}" if at else ""
        yield "schema", f"{schemas.shared}: {level}{day}{owner}"
    if state.steps:
        step = state.steps[-1]
        level = f"level {step.id} of {len(EXT_STEPS)}, by {step.applied_by}"
        yield "companion", f"{schemas.companion}: {level} on {_format_time(step.applied_at)}"


def _format_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")


# Schemas that workers cannot use


def find_schema_blocker(state: SchemaState, schemas: Schemas) -> Finding | None:
    """Find why workers cannot use the shared schema. The role must have its privileges."""
    breaking = max((each.id for each in state.levels if each.is_breaking), default=0)
    if breaking > LATEST_LEVEL:
        return build_too_new_finding(breaking)
    if not state.catalog.has_ledger or state.level == 0:
        return _build_missing_finding(state, schemas)
    if state.level < MIN_LEVEL:
        return _build_too_old_finding(state, schemas)
    return _check_complete(state, schemas)


def _build_missing_finding(state: SchemaState, schemas: Schemas) -> Finding:
    return Finding(
        id=FindingId.SCHEMA_MISSING,
        severity=Severity.CRITICAL,
        title=f"schema {schemas.shared!r} is not installed in this database",
        evidence=("the schema exists, but is empty",) if state.catalog.has_schema else (),
        advice="Install it, or name the right database and schema.",
        shell=format_command(schemas, "migrate"),
    )


def build_too_new_finding(breaking: int) -> Finding:
    """Build the finding for a schema with a breaking level that this release does not know."""
    return Finding(
        id=FindingId.SCHEMA_TOO_NEW,
        severity=Severity.CRITICAL,
        title=f"the schema is at the breaking level {breaking}, this release knows {LATEST_LEVEL}",
        evidence=("a newer release of some implementation has migrated it",),
        advice="Upgrade: workers of this release do not start on this schema.",
        shell="pip install --upgrade graphile-worker",
    )


def _build_too_old_finding(state: SchemaState, schemas: Schemas) -> Finding:
    return Finding(
        id=FindingId.SCHEMA_TOO_OLD,
        severity=Severity.CRITICAL,
        title=f"the schema is at level {state.level}; this release upgrades from {MIN_LEVEL} on",
        evidence=(str(SchemaTooOld(schemas.shared, state.level)),),
        advice="Stop its workers, upgrade once with Graphile Worker for Node, then migrate.",
        shell=f"npx graphile-worker@0.18.0 --schema-only\n{format_command(schemas, 'migrate')}",
    )


def _check_complete(state: SchemaState, schemas: Schemas) -> Finding | None:
    missing = (REQUIRED_FUNCTIONS - state.catalog.functions) | (
        REQUIRED_RELATIONS - state.catalog.relations
    )
    if not missing:
        return None
    return Finding(
        id=FindingId.SCHEMA_INCOMPLETE,
        severity=Severity.CRITICAL,
        title=f"the schema is at level {state.level}, but objects of it are missing",
        evidence=(f"missing: {', '.join(sorted(missing))}",),
        advice="They were dropped, or a restore left them out. Restore them from a backup or from "
        "another database at that level. To print the SQL of all objects:",
        shell=format_command(schemas, "migrate --sql"),
    )


# Schemas that workers can use, but not fully


def check_schema(state: SchemaState, context: DoctorContext) -> list[Finding]:
    """Report what is outdated or missing in a schema that workers can use."""
    return [
        *_check_level(state, context),
        *_check_companion(state, context),
        *_check_indexes(state, context),
    ]


def _check_level(state: SchemaState, context: DoctorContext) -> Iterator[Finding]:
    if state.is_rust_schema:
        tables = [each for each in RUST_TABLES if each in state.catalog.relations]
        yield Finding(
            id=FindingId.SCHEMA_OF_RUST,
            severity=Severity.WARNING,
            title=f"the Rust worker installed the schema, and its level {state.level} differs from "
            "Node's",
            evidence=(
                f"level 19 is not marked as breaking; tables of Rust: {', '.join(tables) or '-'}",
                *((ID_USE,) if state.level < 21 else ()),
                "Rust workers with recovery take jobs of Node workers after five minutes",
            ),
            advice="Python workers use it as it is. "
            + (RUST_UPGRADE_ADVICE if state.level < 21 else "")
            + "Keep the recovery of Rust workers off beside Node workers.",
        )
    elif state.level < LATEST_LEVEL:
        yield Finding(
            id=FindingId.SCHEMA_BEHIND,
            severity=Severity.WARNING,
            title=f"the schema is at level {state.level}; level {LATEST_LEVEL} is available",
            evidence=(ID_USE,),
            advice="Upgrade it; a worker does so when it starts. Node's 0.17 and 0.18 can use the "
            "new level, 0.16 cannot.",
            shell=context.format_command("migrate"),
        )


def _check_companion(state: SchemaState, context: DoctorContext) -> Iterator[Finding]:
    access, companion = state.companion_access, context.schemas.companion
    if state.foreign_objects:
        yield Finding(
            id=FindingId.COMPANION_FOREIGN,
            severity=Severity.CRITICAL,
            title=f"schema {companion!r} belongs to a role whose code would run as any role that "
            "uses it",
            evidence=limit_lines(
                [f"{each.name} belongs to {each.owner}" for each in state.foreign_objects]
            ),
            advice="Workers reject it. If you do not know why it is there, drop it, then migrate. "
            f"If you trust that role, give all of it to the owner of {context.schemas.shared!r}.",
            shell=context.format_command("migrate"),
            sql=context.format_remedy("drop_companion"),
        )
    elif not {each.name for each in access}.issuperset(REGISTRY_TABLES):
        yield Finding(
            id=FindingId.COMPANION_MISSING,
            severity=Severity.WARNING,
            title=f"schema {companion!r} has no registry of workers",
            evidence=("jobs of a dead worker stay locked for four hours",),
            advice="Install it as a role that can create schemas.",
            shell=context.format_command("migrate"),
        )
    elif missing := _list_missing_steps(state):
        yield Finding(
            id=FindingId.COMPANION_BEHIND,
            severity=Severity.WARNING,
            title=f"schema {companion!r} is at level {state.steps[-1].id} of {len(EXT_STEPS)}",
            evidence=(f"missing: {', '.join(missing)}",),
            advice="Upgrade it as its owner; a worker of that role does so when it starts.",
            shell=context.format_command("migrate"),
        )
    elif not state.is_limited and (
        lacking := [each for each in access if not each.can_use_schema or each.missing_privileges]
    ):
        names = {each.name for each in lacking}
        effects = [text for tables, text in PRIVILEGE_EFFECTS if not names.isdisjoint(tables)]
        yield Finding(
            id=FindingId.COMPANION_PRIVILEGES,
            severity=Severity.WARNING,
            title=f"role {context.session.role!r} lacks privileges on schema {companion!r}",
            evidence=(*format_missing_privileges(lacking, companion), *effects),
            advice=f"Grant them as the owner, {access[0].owner!r}.",
            sql=context.format_remedy("grant_companion", role=context.session.role),
        )


def _list_missing_steps(state: SchemaState) -> list[str]:
    # The catalog shows the state of the indexes.
    after = EXT_STEPS[state.steps[-1].id :] if state.steps else ()
    return [each for each in after if each != INDEX_STEP]


def _check_indexes(state: SchemaState, context: DoctorContext) -> Iterator[Finding]:
    missing = [INDEXES[at] for at in state.indexes.missing]
    if not missing:
        return
    incomplete = sorted(state.indexes.incomplete & set(missing))
    building = "; one is being built right now" if state.indexes.are_being_built else ""
    yield Finding(
        id=FindingId.INDEXES_MISSING,
        severity=Severity.WARNING,
        title="the indexes used to fetch jobs are missing",
        evidence=(
            f"missing: {', '.join(missing)}{building}",
            *((f"half built: {', '.join(incomplete)}",) if incomplete else ()),
            "fetching gets slower as the queue grows",
        ),
        advice="Migrate as the owner of the tables; this blocks no other session.",
        shell=context.format_command("migrate"),
    )
