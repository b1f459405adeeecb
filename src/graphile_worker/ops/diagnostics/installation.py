"""Installation: who installed what, how far it is, and what is missing of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.migration import (
    INDEX_STEP,
    MIN_LEVEL,
    REQUIRED_FUNCTIONS,
    REQUIRED_RELATIONS,
)
from graphile_worker._sql.queries import diagnostics, migrations
from graphile_worker._sql.queries.diagnostics import (
    CompanionMigration,
    ObjectAccess,
    SearchPathGrant,
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
from graphile_worker.ops.diagnostics.context import DiagnosticContext, FindingsPlan, limit_lines
from graphile_worker.ops.diagnostics.findings import Finding, FindingId, Severity
from graphile_worker.ops.text import format_command

# What the Rust worker makes at its levels 20 and 22.
RUST_TABLES = ("_private_workers", "_private_job_retirements")

REGISTRY_TABLES = ("pools", "recoveries")

# Said where the queue has a role for each kind of program: none of them should become the owner.
PRIVILEGES_ADVICE = (
    "If this role is to run workers, give it what deploy/sql/rights.sql gives to queue_worker: see "
    "the page on security. If it is to do less, nothing is wrong."
)


@dataclass(frozen=True, slots=True)
class SchemaState:
    """What the catalogue and both ledgers say; a ledger is empty if this role may not read it."""

    catalog: CatalogState
    access: tuple[ObjectAccess, ...]
    indexes: IndexState
    levels: tuple[SharedMigration, ...]
    steps: tuple[CompanionMigration, ...]
    foreign_objects: tuple[ForeignObject, ...]

    @property
    def level(self) -> int:
        return max((each.id for each in self.levels), default=0)

    @property
    def is_rust_schema(self) -> bool:
        """Only the reference marks its level 19 as breaking; the Rust worker means another one."""
        return any(each.id == 19 and not each.is_breaking for each in self.levels)

    def get_access(self, name: str, *, companion: bool = False) -> ObjectAccess | None:
        found = (e for e in self.access if e.name == name and e.is_companion is companion)
        return next(found, None)

    @property
    def shared_access(self) -> list[ObjectAccess]:
        return [each for each in self.access if not each.is_companion]

    @property
    def companion_access(self) -> list[ObjectAccess]:
        return [each for each in self.access if each.is_companion]

    @property
    def is_limited(self) -> bool:
        """May this role look at the queue, and neither add nor take jobs? A reader, for example."""
        jobs = self.get_access("_private_jobs")
        return (
            jobs is not None
            and jobs.can_use_schema
            and {"insert", "update"} <= set(jobs.missing_privileges)
        )

    @property
    def has_hidden_rows(self) -> bool:
        return any(each.has_hidden_rows for each in self.shared_access)

    def is_readable(self, *tables: str, companion: bool = False) -> bool:
        found = [self.get_access(each, companion=companion) for each in tables]
        return all(each is not None and each.is_readable for each in found)


def plan_inspect_schema(schemas: Schemas) -> Plan[SchemaState]:
    """Ask the catalogue first: what is not there, or not for us, is not asked for."""
    catalogue = yield migrations.inspect_database(schemas)
    access = yield diagnostics.inspect_access(schemas)
    indexes = yield migrations.inspect_indexes(schemas)
    foreign = tuple((yield migrations.find_foreign_objects(schemas)))
    if foreign:
        # Even to read there could run code of that role.
        access = [each for each in access if not each.is_companion]
    state = SchemaState(catalogue, tuple(access), indexes, (), (), foreign)
    levels = yield from _plan_read_levels(state)
    steps: list[CompanionMigration] = []
    if state.is_readable("migrations", companion=True):
        steps = yield diagnostics.get_ext_history()
    return SchemaState(catalogue, tuple(access), indexes, tuple(levels), tuple(steps), foreign)


def _plan_read_levels(state: SchemaState) -> Plan[list[SharedMigration]]:
    if not state.is_readable("migrations"):
        return []
    if state.catalog.has_breaking_column:
        found: list[SharedMigration] = yield diagnostics.get_ledger_history()
        return found
    ledger = yield migrations.get_ledger_level()
    return [SharedMigration(ledger.level, 0.0, False)] if ledger.level else []


def detect_installer(levels: Sequence[SharedMigration]) -> str:
    """Who installed the shared schema: ours enters all levels at one moment, others one by one."""
    if any(each.id == 19 and not each.is_breaking for each in levels):
        return "Rust"
    if len(levels) > 1 and levels[0].applied_at == levels[-1].applied_at:
        return "Python"
    return "Node" if levels[-1].id >= 19 else "Node or Rust"


def build_facts(state: SchemaState, schemas: Schemas) -> Iterator[tuple[str, str]]:
    """What is there, in words."""
    if state.levels:
        owner = state.get_access("_private_jobs")
        whose = f", owned by {owner.owner}" if owner else ""
        said = f"level {state.level}, installed by {detect_installer(state.levels)}"
        # Old ledgers do not say when.
        at = state.levels[0].applied_at
        day = f" on {_format_time(at)}" if at else ""
        yield "schema", f"{schemas.shared}: {said}{day}{whose}"
    if state.steps:
        step = state.steps[-1]
        said = (
            f"level {step.id} of {len(EXT_STEPS)}, by {step.applied_by} on "
            f"{_format_time(step.applied_at)}"
        )
        yield "companion", f"{schemas.companion}: {said}"


def _format_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")


# What keeps a worker from working


def find_schema_blocker(state: SchemaState, schemas: Schemas) -> Finding | None:
    """Why the shared schema cannot be used at all, if so; what is about rights comes before."""
    breaking = max((each.id for each in state.levels if each.is_breaking), default=0)
    if breaking > LATEST_LEVEL:
        return _build_too_new_finding(breaking)
    if not state.catalog.has_ledger or state.level == 0:
        return _build_missing_finding(state, schemas)
    if state.level < MIN_LEVEL:
        return _build_too_old_finding(state, schemas)
    return _check_complete(state, schemas)


def _build_missing_finding(state: SchemaState, schemas: Schemas) -> Finding:
    there = "it exists, but nothing is installed in it" if state.catalog.has_schema else None
    return Finding(
        id=FindingId.SCHEMA_MISSING,
        severity=Severity.CRITICAL,
        title=f"schema {schemas.shared!r} is not installed in this database",
        evidence=() if there is None else (there,),
        advice="Install it, or name the right database and schema.",
        shell=format_command(schemas, "migrate"),
    )


def _build_too_new_finding(breaking: int) -> Finding:
    return Finding(
        id=FindingId.SCHEMA_TOO_NEW,
        severity=Severity.CRITICAL,
        title=f"the schema is at the breaking level {breaking}, this release knows {LATEST_LEVEL}",
        evidence=("a newer release, in whatever language, has migrated it",),
        advice="Upgrade before a worker of this release is started; it would refuse to.",
        shell="pip install --upgrade graphile-worker",
    )


def _build_too_old_finding(state: SchemaState, schemas: Schemas) -> Finding:
    return Finding(
        id=FindingId.SCHEMA_TOO_OLD,
        severity=Severity.CRITICAL,
        title=f"the schema is at level {state.level}, {MIN_LEVEL} and up can be upgraded here",
        evidence=(str(SchemaTooOld(schemas.shared, state.level)),),
        advice="Stop its workers, let the reference bring it up once, then migrate.",
        shell=f"npx graphile-worker@0.18.0 --schema-only\n{format_command(schemas, 'migrate')}",
    )


def _check_complete(state: SchemaState, schemas: Schemas) -> Finding | None:
    catalogue = state.catalog
    missing = (REQUIRED_FUNCTIONS - catalogue.functions) | (
        REQUIRED_RELATIONS - catalogue.relations
    )
    if not missing:
        return None
    return Finding(
        id=FindingId.SCHEMA_INCOMPLETE,
        severity=Severity.CRITICAL,
        title=f"the schema says that it is at level {state.level}, but part of it is not there",
        evidence=(f"missing: {', '.join(sorted(missing))}",),
        advice="Somebody dropped it, or a restore left it out. Restore it from a backup or from "
        "another database at that level; for an empty database this prints all of it:",
        shell=format_command(schemas, "migrate --sql"),
    )


# What it works without


def check_schema(state: SchemaState, context: DiagnosticContext) -> list[Finding]:
    """What is not as it should be about a schema that can be used."""
    return [
        *_check_level(state, context),
        *_check_companion(state, context),
        *_check_indexes(state, context),
    ]


def _check_level(state: SchemaState, context: DiagnosticContext) -> Iterator[Finding]:
    if state.is_rust_schema:
        yield _build_rust_schema_finding(state)
    elif state.level < LATEST_LEVEL:
        yield Finding(
            id=FindingId.SCHEMA_BEHIND,
            severity=Severity.WARNING,
            title=f"the schema is at level {state.level}, {LATEST_LEVEL} is there to be had",
            evidence=("every job that is added uses up an id of its task and of its queue",),
            advice="Upgrade it; a worker does so when it starts. Node's 0.17 and 0.18 go on beside "
            "it, 0.16 does not.",
            shell=context.format_command("migrate"),
        )
    if state.level > LATEST_LEVEL:
        yield Finding(
            id=FindingId.SCHEMA_NEWER,
            severity=Severity.WARNING,
            title=f"the schema is at level {state.level}, this release knows {LATEST_LEVEL}",
            evidence=("none of the newer levels is marked as breaking, so it is used",),
            advice="Upgrade when a release comes that knows it.",
            shell="pip install --upgrade graphile-worker",
        )


def _build_rust_schema_finding(state: SchemaState) -> Finding:
    theirs = [each for each in RUST_TABLES if each in state.catalog.relations]
    burns = ("every job that is added uses up an id of its task and of its queue",)
    return Finding(
        id=FindingId.SCHEMA_OF_RUST,
        severity=Severity.WARNING,
        title=f"the schema was installed by the Rust worker, whose level {state.level} is its own",
        evidence=(
            f"level 19 is not marked as breaking; of its own there are: {', '.join(theirs) or '-'}",
            *(burns if state.level < 21 else ()),
            "where Rust workers recover jobs, they take those of Node workers after five minutes",
        ),
        advice="It is used as it is. Let the Rust worker bring it up to its level 21 or newer, and "
        "look at sequence-fill until then. Keep its recovery off beside Node workers.",
    )


def _check_companion(state: SchemaState, context: DiagnosticContext) -> Iterator[Finding]:
    tables = [state.get_access(each, companion=True) for each in REGISTRY_TABLES]
    there = [each for each in tables if each is not None]
    if state.foreign_objects:
        yield Finding(
            id=FindingId.COMPANION_FOREIGN,
            severity=Severity.CRITICAL,
            title=f"schema {context.schemas.companion!r} belongs to a role that could let its code "
            "run as any role that uses it",
            evidence=limit_lines(
                [f"{each.name} belongs to {each.owner}" for each in state.foreign_objects]
            ),
            advice="Workers refuse it. Drop it, if you do not know why it is there, then migrate. "
            f"If you trust that role, let all belong to the owner of {context.schemas.shared!r}.",
            shell=context.format_command("migrate"),
            sql=context.format_remedy("drop_companion"),
        )
    elif len(there) < len(tables):
        yield Finding(
            id=FindingId.COMPANION_MISSING,
            severity=Severity.WARNING,
            title=f"there is no registry of pools in schema {context.schemas.companion!r}",
            evidence=("the jobs of a worker that dies wait for four hours",),
            advice="Let a role that may create schemas install it.",
            shell=context.format_command("migrate"),
        )
    elif missing := _list_missing_steps(state):
        yield Finding(
            id=FindingId.COMPANION_BEHIND,
            severity=Severity.WARNING,
            title=f"schema {context.schemas.companion!r} is at level {state.steps[-1].id} of "
            f"{len(EXT_STEPS)}",
            evidence=(f"missing: {', '.join(missing)}",),
            advice="Let its owner upgrade it; a worker of that role does so when it starts.",
            shell=context.format_command("migrate"),
        )
    elif not state.is_limited and any(
        not each.can_use_schema or each.missing_privileges for each in state.companion_access
    ):
        yield _build_companion_privileges_finding(state.companion_access, context)


def _list_missing_steps(state: SchemaState) -> list[str]:
    # Of the indexes the catalogue tells.
    after = EXT_STEPS[state.steps[-1].id :] if state.steps else ()
    return [each for each in after if each != INDEX_STEP]


def _build_companion_privileges_finding(
    tables: list[ObjectAccess], context: DiagnosticContext
) -> Finding:
    return Finding(
        id=FindingId.COMPANION_PRIVILEGES,
        severity=Severity.WARNING,
        title=f"role {context.session.role!r} may not use the registry of pools",
        evidence=(
            *_format_missing_privileges(tables, context.schemas.companion),
            "the jobs of a worker that dies may wait for four hours",
        ),
        advice=f"Let the owner, {tables[0].owner!r}, grant what is missing.",
        sql=context.format_remedy("grant_companion", role=context.session.role),
    )


def _check_indexes(state: SchemaState, context: DiagnosticContext) -> Iterator[Finding]:
    missing = [INDEXES[at] for at in state.indexes.missing]
    if not missing:
        return
    half = sorted(state.indexes.incomplete & set(missing))
    building = "; one is being built right now" if state.indexes.are_being_built else ""
    yield Finding(
        id=FindingId.INDEXES_MISSING,
        severity=Severity.WARNING,
        title="indexes are missing by which jobs are fetched",
        evidence=(
            f"missing: {', '.join(missing)}{building}",
            *((f"half built: {', '.join(half)}",) if half else ()),
            "fetching gets slower with what else lies in the queue",
        ),
        advice="Let the owner of the tables make them; nobody has to wait meanwhile.",
        shell=context.format_command("migrate"),
    )


# Rights


def check_privileges(state: SchemaState, context: DiagnosticContext) -> list[Finding]:
    """What this role lacks to use the shared schema, or does not see of it."""
    shared = state.shared_access
    lacking = [each for each in shared if not each.can_use_schema or each.missing_privileges]
    if lacking:
        return [_build_privileges_finding(lacking, state, context)]
    hidden = [each for each in shared if each.has_hidden_rows]
    return [_build_rows_hidden_finding(hidden, state, context)] if hidden else []


def build_limited_role_finding(
    state: SchemaState, unseen: list[str], context: DiagnosticContext
) -> Finding:
    """About a role that is not for workers: what was not looked at, and no way to more rights."""
    return Finding(
        id=FindingId.LIMITED_ROLE,
        severity=Severity.WARNING,
        title=f"role {context.session.role!r} may neither add nor take jobs: what it may not see "
        "is "
        "not checked",
        evidence=(
            *[f"not checked: {each}" for each in unseen],
            *_format_missing_privileges(
                [each for each in state.shared_access if each.missing_privileges],
                context.schemas.shared,
            ),
        ),
        advice=f"Run this as the role of your workers to check everything. {PRIVILEGES_ADVICE}",
    )


def _build_privileges_finding(
    tables: list[ObjectAccess], state: SchemaState, context: DiagnosticContext
) -> Finding:
    advice, sql = _build_membership_advice(state, context)
    return Finding(
        id=FindingId.PRIVILEGES_MISSING,
        severity=Severity.CRITICAL,
        title=f"role {context.session.role!r} may not use the queue",
        evidence=tuple(_format_missing_privileges(tables, context.schemas.shared)),
        advice=advice,
        sql=sql,
    )


def _build_rows_hidden_finding(
    tables: list[ObjectAccess], state: SchemaState, context: DiagnosticContext
) -> Finding:
    advice, sql = _build_membership_advice(state, context)
    if tables[0].owner == context.session.role:
        advice = "The owner is bound by it too: take it back."
        sql = context.format_remedy("disable_forced_row_security")
    names = ", ".join(each.name for each in tables)
    return Finding(
        id=FindingId.ROWS_HIDDEN,
        severity=Severity.CRITICAL,
        title=f"row level security hides all rows from role {context.session.role!r}",
        evidence=(f"no policy lets it see anything of: {names}",),
        advice=advice,
        sql=sql,
    )


def _build_membership_advice(
    state: SchemaState, context: DiagnosticContext
) -> tuple[str, str | None]:
    """How a role gets the rights of a worker; with SQL where all programs share one role."""
    if any(each.has_policies for each in state.shared_access):
        return PRIVILEGES_ADVICE, None
    owner = state.shared_access[0].owner
    advice = (
        f"Make it a member of {owner!r}, who owns the tables: row level security lets only the "
        "owner see their rows, and grants do not change "
        f"that.{_build_superuser_warning(state.shared_access[0])}"
    )
    return advice, context.format_remedy("grant_owner", owner=owner, role=context.session.role)


def _build_superuser_warning(table: ObjectAccess) -> str:
    if not table.is_owner_superuser:
        return ""
    return " That is a superuser: rather let a role without such rights own the queue first."


def _format_missing_privileges(tables: list[ObjectAccess], schema: str) -> Iterator[str]:
    if not tables[0].can_use_schema:
        yield f"no usage of schema {schema}"
    for each in tables:
        if each.missing_privileges:
            yield f"no {', '.join(each.missing_privileges)} on {each.name}"


# The search path


def plan_check_search_path(context: DiagnosticContext) -> FindingsPlan:
    """Which roles can put functions of their own in the way of those that are meant."""
    found: list[SearchPathGrant] = yield diagnostics.inspect_search_path(context.schemas)
    # A privilege that two roles have granted is one privilege.
    rights = list(dict.fromkeys(found))
    if not rights:
        return []
    granted = [each for each in rights if not each.is_schema_owner]
    return [
        Finding(
            id=FindingId.UNSAFE_PATH,
            severity=Severity.WARNING,
            title="other roles may create functions in a schema on the search path",
            evidence=limit_lines([_format_search_path_grant(each) for each in rights]),
            advice=f"{_describe_impact(rights)} Revoke the privilege, or take the schema off the "
            "path.",
            sql="\n".join(
                context.format_remedy("revoke_create", place=each.schema, role=each.role)
                for each in granted
            )
            or None,
        )
    ]


def _describe_impact(grants: list[SearchPathGrant]) -> str:
    if any(each.is_before_catalog for each in grants):
        return "What they create replaces built-in operators in every statement of this session."
    return (
        "The statements of this package, and functions that it installed, do not call them. "
        "Functions that Node or Rust installed, your triggers and your tasks may."
    )


def _format_search_path_grant(grant: SearchPathGrant) -> str:
    role = "every role" if grant.role == "public" else f"role {grant.role!r}"
    verb = "owns" if grant.is_schema_owner else "may create in"
    first = ", which is searched before pg_catalog" if grant.is_before_catalog else ""
    return f"{role} {verb} schema {grant.schema!r}{first}"
