"""Plans that list limits of tasks, and change them while workers run."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TypeVar

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.add import raise_job_spec_error, raise_schema_missing
from graphile_worker._sql.plans.audit import (
    AuditLabel,
    build_audited_transaction,
    clean_actor,
    make_storable,
)
from graphile_worker._sql.queries.audit import AuditAccess, AuditAction, begin_audit
from graphile_worker._sql.queries.limits import (
    LimitAccess,
    LimitState,
    check_limits,
    create_limit_rows,
    get_slot_renters,
    list_limits,
    reset_limit,
    set_limit,
)
from graphile_worker._sql.queries.pauses import notify_pauses
from graphile_worker._sql.query import Plan
from graphile_worker._support.text import suggest
from graphile_worker.errors import JobSpecError, SchemaError
from graphile_worker.jobs import check_text
from graphile_worker.limits import ConcurrencyLimit, Limit, RateLimit

T = TypeVar("T")

MAX_LIMITS = 10_000

# The payload of the notification: workers read pauses and limits again.
LIMIT_CHANGED = "limit"


def plan_list_limits(schemas: Schemas) -> Plan[list[LimitState]]:
    """List the limits that workers have registered, by name.

    Args:
        schemas: The schemas of the queue.

    Returns:
        A plan for the limits. It returns none if the schema has no tables of limits, or if this
        role may not read them.
    """
    try:
        access: LimitAccess = yield check_limits(schemas)
        states: list[LimitState] = (yield list_limits(MAX_LIMITS)) if access.can_read else []
    except Exception as error:
        raise_schema_missing(error, schemas)
    return states


def plan_can_read_limits(schemas: Schemas) -> Plan[bool]:
    """Return whether the schema has the tables of limits, and this role may read them."""
    access: LimitAccess = yield check_limits(schemas)
    return access.can_read


def plan_get_slot_renters(names: list[str], schemas: Schemas) -> Plan[dict[str, dict[str, int]]]:
    """Return how many slots of these limits each pool rents, by limit and pool."""
    access: LimitAccess = yield check_limits(schemas)
    rows: list[tuple[str, str, int]] = (yield get_slot_renters(names)) if access.can_read else []
    renters: dict[str, dict[str, int]] = {name: {} for name in names}
    for name, pool_id, count in rows:
        renters[name][pool_id] = count
    return renters


def plan_set_slots(
    name: str, slots: int, schemas: Schemas, *, actor: str | None = None
) -> Plan[LimitState]:
    """Change how many jobs of a concurrency limit run at the same time.

    It takes effect within seconds, and a later deployment does not change it back. Jobs that run
    are not stopped.

    Args:
        name: The name of the limit.
        slots: Number of jobs that run at the same time.
        schemas: The schemas of the queue.
        actor: Who changes it (default: the database role).

    Returns:
        A plan for the limit.

    Raises:
        ConfigurationError: The number is out of range.
        JobSpecError: The limit does not exist, or it is a rate limit.
        SchemaError: This role may not change limits.
    """
    return _plan_set(name, schemas, lambda state: ConcurrencyLimit(slots, name=name), actor)


def plan_set_rate(
    name: str,
    starts: int,
    per: timedelta,
    schemas: Schemas,
    *,
    burst: int | None = None,
    actor: str | None = None,
) -> Plan[LimitState]:
    """Change how many jobs of a rate limit start in a period.

    It takes effect within seconds, and a later deployment does not change it back.

    Args:
        name: The name of the limit.
        starts: Number of starts in each period.
        per: The period.
        schemas: The schemas of the queue.
        burst: Number of starts that may follow each other at once (default: as before).
        actor: Who changes it (default: the database role).

    Returns:
        A plan for the limit.

    Raises:
        ConfigurationError: A value is out of range.
        JobSpecError: The limit does not exist, or it is a concurrency limit.
        SchemaError: This role may not change limits.
    """

    def build_limit(state: LimitState) -> Limit:
        before = state.limit.burst if isinstance(state.limit, RateLimit) else 1
        return RateLimit(starts, per=per, burst=before if burst is None else burst, name=name)

    return _plan_set(name, schemas, build_limit, actor)


def plan_reset_limit(
    name: str, schemas: Schemas, *, actor: str | None = None
) -> Plan[LimitState | None]:
    """Let the values of the app be in force again.

    Args:
        name: The name of the limit.
        schemas: The schemas of the queue.
        actor: Who changes it (default: the database role).

    Returns:
        A plan for the limit, or None if the values of the app are in force already.

    Raises:
        JobSpecError: The limit does not exist.
        SchemaError: This role may not change limits.
    """
    check_text("name", name)

    def build_plan() -> Plan[LimitState | None]:
        audit = yield from _plan_begin(schemas)
        state = yield from _plan_find(name)
        was_set: bool = yield reset_limit(name)
        label = _build_label(AuditAction.LIMITS_RESET, state.defined, actor)
        yield from _plan_end(name, label, audit, was_set)
        return replace_limit(state, state.defined) if was_set else None

    return (yield from _plan_transaction(build_plan, schemas))


def replace_limit(
    state: LimitState,
    limit: Limit,
    set_by: str | None = None,
    set_at: datetime | None = None,
) -> LimitState:
    """Return the state of a limit with other values in force."""
    return LimitState(
        limit,
        state.defined,
        set_by,
        set_at,
        state.used_slots,
        state.seconds_until_next,
        state.is_wanted,
    )


def _plan_set(
    name: str, schemas: Schemas, build_limit: Callable[[LimitState], Limit], actor: str | None
) -> Plan[LimitState]:
    check_text("name", name)

    def build_plan() -> Plan[LimitState]:
        audit = yield from _plan_begin(schemas)
        state = yield from _plan_find(name)
        limit = build_limit(state)
        if type(limit) is not type(state.limit):
            example = "20" if isinstance(state.limit, ConcurrencyLimit) else "50/1m"
            raise JobSpecError(
                "name",
                name,
                f"this is a {state.kind} limit ({state.limit}): set a value such as {example}",
                "42809",
            )
        who = make_storable(clean_actor(actor), audit)
        answer: tuple[str, datetime] | None = yield set_limit(limit, who)
        if answer is None:
            raise JobSpecError(
                "name",
                name,
                "a worker or a person changed the kind of this limit or deleted it meanwhile. "
                "Run `graphile-worker limits list`.",
                "42704",
            )
        yield from _plan_end(name, _build_label(AuditAction.LIMITS_SET, limit, actor), audit, True)
        return replace_limit(state, limit, *answer)

    return (yield from _plan_transaction(build_plan, schemas))


def _plan_begin(schemas: Schemas) -> Plan[AuditAccess]:
    audit: AuditAccess = yield begin_audit(schemas)
    access: LimitAccess = yield check_limits(schemas)
    if not access.can_write:
        raise SchemaError(
            f"schema {schemas.companion!r} cannot store limits: its tables are missing, or this "
            "role may not write to them. Run `graphile-worker migrate` as the owner, and grant the "
            "role its permissions."
        )
    return audit


def _plan_find(name: str) -> Plan[LimitState]:
    states: list[LimitState] = yield list_limits(MAX_LIMITS)
    known = {each.name: each for each in states}
    if name not in known:
        hint = suggest(name, known).removesuffix(".")
        raise JobSpecError(
            "name", name, f"no worker has registered a limit of this name{hint}", "42704"
        )
    return known[name]


def _plan_end(name: str, label: AuditLabel, audit: AuditAccess, has_changed: bool) -> Plan[None]:
    # A concurrency limit may need more slots.
    yield create_limit_rows([name])
    yield notify_pauses(LIMIT_CHANGED)
    yield label.build_entry(audit, int(has_changed))


def _plan_transaction(build_plan: Callable[[], Plan[T]], schemas: Schemas) -> Plan[T]:
    try:
        answer: T = yield build_audited_transaction(build_plan)
    except Exception as error:
        raise_job_spec_error(error, schemas)
    return answer


def _build_label(action: AuditAction, limit: Limit, actor: str | None) -> AuditLabel:
    return AuditLabel(action=action, actor=actor, filter=f"limit:{limit.name}", note=str(limit))
