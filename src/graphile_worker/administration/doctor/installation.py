"""Installation: who installed what, how far it is, and what is missing of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from graphile_worker.administration.doctor.case import Case, Findings, lines
from graphile_worker.administration.doctor.finding import Finding, FindingId, Severity
from graphile_worker.administration.wording import command
from graphile_worker.db.migrate import FUNCTIONS, INDEX_STEP, OLDEST_LEVEL, RELATIONS
from graphile_worker.errors import SchemaTooOld
from graphile_worker.sql import health, migrations
from graphile_worker.sql.health import Access, Level, PathRight, Step
from graphile_worker.sql.identifiers import Schemas
from graphile_worker.sql.migrations import (
    EXT_STEPS,
    INDEXES,
    LEVEL,
    Catalogue,
    ForeignObject,
    Indexes,
)
from graphile_worker.sql.query import Plan

# What the Rust worker makes at its levels 20 and 22.
RUST_TABLES = ("_private_workers", "_private_job_retirements")

REGISTRY = ("pools", "recoveries")

# Said where the queue has a role for each kind of program: none of them should become the owner.
ASK_FOR_RIGHTS = (
    "If this role is to run workers, give it what deploy/sql/rights.sql gives to queue_worker: see "
    "the page on security. If it is to do less, nothing is wrong."
)


@dataclass(frozen=True, slots=True)
class SchemaState:
    """What the catalogue and both ledgers say; a ledger is empty if this role may not read it."""

    catalogue: Catalogue
    access: tuple[Access, ...]
    indexes: Indexes
    levels: tuple[Level, ...]
    steps: tuple[Step, ...]
    foreign: tuple[ForeignObject, ...]

    @property
    def level(self) -> int:
        return max((each.id for each in self.levels), default=0)

    @property
    def is_of_rust(self) -> bool:
        """Only the reference marks its level 19 as breaking; the Rust worker means another one."""
        return any(each.id == 19 and not each.breaking for each in self.levels)

    def of(self, name: str, *, companion: bool = False) -> Access | None:
        found = (e for e in self.access if e.name == name and e.is_companion is companion)
        return next(found, None)

    @property
    def shared(self) -> list[Access]:
        return [each for each in self.access if not each.is_companion]

    @property
    def companion(self) -> list[Access]:
        return [each for each in self.access if each.is_companion]

    @property
    def is_limited(self) -> bool:
        """May this role look at the queue, and neither add nor take jobs? A reader, for example."""
        jobs = self.of("_private_jobs")
        return jobs is not None and jobs.may_use_schema and {"insert", "update"} <= set(jobs.lacks)

    @property
    def hides_rows(self) -> bool:
        return any(each.hides_rows for each in self.shared)

    def is_readable(self, *tables: str, companion: bool = False) -> bool:
        found = [self.of(each, companion=companion) for each in tables]
        return all(each is not None and each.is_readable for each in found)


def looking(schemas: Schemas) -> Plan[SchemaState]:
    """Ask the catalogue first: what is not there, or not for us, is not asked for."""
    catalogue = yield migrations.inspect_database(schemas)
    access = yield health.inspect_access(schemas)
    indexes = yield migrations.inspect_indexes(schemas)
    foreign = tuple((yield migrations.find_foreign_objects(schemas)))
    if foreign:
        # Even to read there could run code of that role.
        access = [each for each in access if not each.is_companion]
    state = SchemaState(catalogue, tuple(access), indexes, (), (), foreign)
    levels = yield from _reading_levels(state)
    steps: list[Step] = []
    if state.is_readable("migrations", companion=True):
        steps = yield health.get_ext_history()
    return SchemaState(catalogue, tuple(access), indexes, tuple(levels), tuple(steps), foreign)


def _reading_levels(state: SchemaState) -> Plan[list[Level]]:
    if not state.is_readable("migrations"):
        return []
    if state.catalogue.has_breaking:
        found: list[Level] = yield health.get_ledger_history()
        return found
    ledger = yield migrations.get_ledger_level()
    return [Level(ledger.level, 0.0, False)] if ledger.level else []


def installer(levels: Sequence[Level]) -> str:
    """Who installed the shared schema: ours enters all levels at one moment, others one by one."""
    if any(each.id == 19 and not each.breaking for each in levels):
        return "Rust"
    if len(levels) > 1 and levels[0].at == levels[-1].at:
        return "Python"
    return "Node" if levels[-1].id >= 19 else "Node or Rust"


def facts(state: SchemaState, schemas: Schemas) -> Iterator[tuple[str, str]]:
    """What is there, in words."""
    if state.levels:
        owner = state.of("_private_jobs")
        whose = f", owned by {owner.owner}" if owner else ""
        said = f"level {state.level}, installed by {installer(state.levels)}"
        # Old ledgers do not say when.
        at = state.levels[0].at
        day = f" on {_day(at)}" if at else ""
        yield "schema", f"{schemas.shared}: {said}{day}{whose}"
    if state.steps:
        step = state.steps[-1]
        said = f"level {step.id} of {len(EXT_STEPS)}, by {step.by} on {_day(step.at)}"
        yield "companion", f"{schemas.companion}: {said}"


def _day(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")


# What keeps a worker from working


def unusable(state: SchemaState, schemas: Schemas) -> Finding | None:
    """Why the shared schema cannot be used at all, if so; what is about rights comes before."""
    breaking = max((each.id for each in state.levels if each.breaking), default=0)
    if breaking > LEVEL:
        return _too_new(breaking)
    if not state.catalogue.has_ledger or state.level == 0:
        return _missing(state, schemas)
    if state.level < OLDEST_LEVEL:
        return _too_old(state, schemas)
    return _incomplete(state, schemas)


def _missing(state: SchemaState, schemas: Schemas) -> Finding:
    there = "it exists, but nothing is installed in it" if state.catalogue.has_schema else None
    return Finding(
        id=FindingId.SCHEMA_MISSING,
        severity=Severity.CRITICAL,
        title=f"schema {schemas.shared!r} is not installed in this database",
        evidence=() if there is None else (there,),
        advice="Install it, or name the right database and schema.",
        shell=command(schemas, "migrate"),
    )


def _too_new(breaking: int) -> Finding:
    return Finding(
        id=FindingId.SCHEMA_TOO_NEW,
        severity=Severity.CRITICAL,
        title=f"the schema is at the breaking level {breaking}, this release knows {LEVEL}",
        evidence=("a newer release, in whatever language, has migrated it",),
        advice="Upgrade before a worker of this release is started; it would refuse to.",
        shell="pip install --upgrade graphile-worker",
    )


def _too_old(state: SchemaState, schemas: Schemas) -> Finding:
    return Finding(
        id=FindingId.SCHEMA_TOO_OLD,
        severity=Severity.CRITICAL,
        title=f"the schema is at level {state.level}, {OLDEST_LEVEL} and up can be upgraded here",
        evidence=(str(SchemaTooOld(schemas.shared, state.level)),),
        advice="Stop its workers, let the reference bring it up once, then migrate.",
        shell=f"npx graphile-worker@0.18.0 --schema-only\n{command(schemas, 'migrate')}",
    )


def _incomplete(state: SchemaState, schemas: Schemas) -> Finding | None:
    catalogue = state.catalogue
    missing = (FUNCTIONS - catalogue.functions) | (RELATIONS - catalogue.relations)
    if not missing:
        return None
    return Finding(
        id=FindingId.SCHEMA_INCOMPLETE,
        severity=Severity.CRITICAL,
        title=f"the schema says that it is at level {state.level}, but part of it is not there",
        evidence=(f"missing: {', '.join(sorted(missing))}",),
        advice="Somebody dropped it, or a restore left it out. Restore it from a backup or from "
        "another database at that level; for an empty database this prints all of it:",
        shell=command(schemas, "migrate --sql"),
    )


# What it works without


def imperfect(state: SchemaState, case: Case) -> list[Finding]:
    """What is not as it should be about a schema that can be used."""
    return [*_about_level(state, case), *_companion(state, case), *_indexes(state, case)]


def _about_level(state: SchemaState, case: Case) -> Iterator[Finding]:
    if state.is_of_rust:
        yield _of_rust(state)
    elif state.level < LEVEL:
        yield Finding(
            id=FindingId.SCHEMA_BEHIND,
            severity=Severity.WARNING,
            title=f"the schema is at level {state.level}, {LEVEL} is there to be had",
            evidence=("every job that is added uses up an id of its task and of its queue",),
            advice="Upgrade it; a worker does so when it starts. Node's 0.17 and 0.18 go on beside "
            "it, 0.16 does not.",
            shell=case.command("migrate"),
        )
    if state.level > LEVEL:
        yield Finding(
            id=FindingId.SCHEMA_NEWER,
            severity=Severity.WARNING,
            title=f"the schema is at level {state.level}, this release knows {LEVEL}",
            evidence=("none of the newer levels is marked as breaking, so it is used",),
            advice="Upgrade when a release comes that knows it.",
            shell="pip install --upgrade graphile-worker",
        )


def _of_rust(state: SchemaState) -> Finding:
    theirs = [each for each in RUST_TABLES if each in state.catalogue.relations]
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


def _companion(state: SchemaState, case: Case) -> Iterator[Finding]:
    tables = [state.of(each, companion=True) for each in REGISTRY]
    there = [each for each in tables if each is not None]
    if state.foreign:
        yield Finding(
            id=FindingId.COMPANION_FOREIGN,
            severity=Severity.CRITICAL,
            title=f"schema {case.schemas.companion!r} belongs to a role that could let its code "
            "run as any role that uses it",
            evidence=lines([f"{each.name} belongs to {each.owner}" for each in state.foreign]),
            advice="Workers refuse it. Drop it, if you do not know why it is there, then migrate. "
            f"If you trust that role, let all belong to the owner of {case.schemas.shared!r}.",
            shell=case.command("migrate"),
            sql=case.cure("drop_companion"),
        )
    elif len(there) < len(tables):
        yield Finding(
            id=FindingId.COMPANION_MISSING,
            severity=Severity.WARNING,
            title=f"there is no registry of pools in schema {case.schemas.companion!r}",
            evidence=("the jobs of a worker that dies wait for four hours",),
            advice="Let a role that may create schemas install it.",
            shell=case.command("migrate"),
        )
    elif missing := _missing_steps(state):
        yield Finding(
            id=FindingId.COMPANION_BEHIND,
            severity=Severity.WARNING,
            title=f"schema {case.schemas.companion!r} is at level {state.steps[-1].id} of "
            f"{len(EXT_STEPS)}",
            evidence=(f"missing: {', '.join(missing)}",),
            advice="Let its owner upgrade it; a worker of that role does so when it starts.",
            shell=case.command("migrate"),
        )
    elif not state.is_limited and any(
        not each.may_use_schema or each.lacks for each in state.companion
    ):
        yield _companion_rights(state.companion, case)


def _missing_steps(state: SchemaState) -> list[str]:
    # Of the indexes the catalogue tells.
    after = EXT_STEPS[state.steps[-1].id :] if state.steps else ()
    return [each for each in after if each != INDEX_STEP]


def _companion_rights(tables: list[Access], case: Case) -> Finding:
    return Finding(
        id=FindingId.COMPANION_RIGHTS,
        severity=Severity.WARNING,
        title=f"role {case.session.role!r} may not use the registry of pools",
        evidence=(
            *_lacking(tables, case.schemas.companion),
            "the jobs of a worker that dies may wait for four hours",
        ),
        advice=f"Let the owner, {tables[0].owner!r}, grant what is missing.",
        sql=case.cure("grant_companion", role=case.session.role),
    )


def _indexes(state: SchemaState, case: Case) -> Iterator[Finding]:
    missing = [INDEXES[at] for at in state.indexes.missing]
    if not missing:
        return
    half = sorted(state.indexes.unready & set(missing))
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
        shell=case.command("migrate"),
    )


# Rights


def without_rights(state: SchemaState, case: Case) -> list[Finding]:
    """What this role lacks to use the shared schema, or does not see of it."""
    shared = state.shared
    lacking = [each for each in shared if not each.may_use_schema or each.lacks]
    if lacking:
        return [_rights_missing(lacking, state, case)]
    hidden = [each for each in shared if each.hides_rows]
    return [_rows_hidden(hidden, state, case)] if hidden else []


def limited(state: SchemaState, unseen: list[str], case: Case) -> Finding:
    """About a role that is not for workers: what was not looked at, and no way to more rights."""
    return Finding(
        id=FindingId.LIMITED_ROLE,
        severity=Severity.WARNING,
        title=f"role {case.session.role!r} may neither add nor take jobs: what it may not see is "
        "not checked",
        evidence=(
            *[f"not checked: {each}" for each in unseen],
            *_lacking([each for each in state.shared if each.lacks], case.schemas.shared),
        ),
        advice=f"Run this as the role of your workers to check everything. {ASK_FOR_RIGHTS}",
    )


def _rights_missing(tables: list[Access], state: SchemaState, case: Case) -> Finding:
    advice, sql = _joining(state, case)
    return Finding(
        id=FindingId.RIGHTS_MISSING,
        severity=Severity.CRITICAL,
        title=f"role {case.session.role!r} may not use the queue",
        evidence=tuple(_lacking(tables, case.schemas.shared)),
        advice=advice,
        sql=sql,
    )


def _rows_hidden(tables: list[Access], state: SchemaState, case: Case) -> Finding:
    advice, sql = _joining(state, case)
    if tables[0].owner == case.session.role:
        advice = "The owner is bound by it too: take it back."
        sql = case.cure("unforce_security")
    names = ", ".join(each.name for each in tables)
    return Finding(
        id=FindingId.ROWS_HIDDEN,
        severity=Severity.CRITICAL,
        title=f"row level security hides all rows from role {case.session.role!r}",
        evidence=(f"no policy lets it see anything of: {names}",),
        advice=advice,
        sql=sql,
    )


def _joining(state: SchemaState, case: Case) -> tuple[str, str | None]:
    """How a role gets the rights of a worker; with SQL where all programs share one role."""
    if any(each.has_policies for each in state.shared):
        return ASK_FOR_RIGHTS, None
    owner = state.shared[0].owner
    advice = (
        f"Make it a member of {owner!r}, who owns the tables: row level security lets only the "
        f"owner see their rows, and grants do not change that.{_careful(state.shared[0])}"
    )
    return advice, case.cure("join_owner", owner=owner, role=case.session.role)


def _careful(table: Access) -> str:
    if not table.owner_is_superuser:
        return ""
    return " That is a superuser: rather let a role without such rights own the queue first."


def _lacking(tables: list[Access], schema: str) -> Iterator[str]:
    if not tables[0].may_use_schema:
        yield f"no usage of schema {schema}"
    for each in tables:
        if each.lacks:
            yield f"no {', '.join(each.lacks)} on {each.name}"


# The search path


def examining_path(case: Case) -> Findings:
    """Which roles can put functions of their own in the way of those that are meant."""
    found: list[PathRight] = yield health.inspect_path(case.schemas)
    # A privilege that two roles have granted is one privilege.
    rights = list(dict.fromkeys(found))
    if not rights:
        return []
    granted = [each for each in rights if not each.owns_schema]
    return [
        Finding(
            id=FindingId.UNSAFE_PATH,
            severity=Severity.WARNING,
            title="other roles may create functions in a schema on the search path",
            evidence=lines([_right(each) for each in rights]),
            advice=f"{_reach(rights)} Revoke the privilege, or take the schema off the path.",
            sql="\n".join(
                case.cure("revoke_create", place=each.schema, role=each.role) for each in granted
            )
            or None,
        )
    ]


def _reach(rights: list[PathRight]) -> str:
    if any(each.comes_first for each in rights):
        return "What they create replaces built-in operators in every statement of this session."
    return (
        "The statements of this package, and functions that it installed, do not call them. "
        "Functions that Node or Rust installed, your triggers and your tasks may."
    )


def _right(right: PathRight) -> str:
    role = "every role" if right.role == "public" else f"role {right.role!r}"
    verb = "owns" if right.owns_schema else "may create in"
    first = ", which is searched before pg_catalog" if right.comes_first else ""
    return f"{role} {verb} schema {right.schema!r}{first}"
