"""The server: what is full, what is held, what is turned off."""

from collections.abc import Iterable, Iterator, Mapping

from graphile_worker._sql.queries import diagnostics, storage
from graphile_worker._sql.queries.diagnostics import ConnectionUsage, DeadRows, FreeIds, IdSequence
from graphile_worker._sql.queries.storage import ServerSetting, VacuumBlocker
from graphile_worker.ops.diagnostics.context import (
    DiagnosticContext,
    FindingsPlan,
    format_duration,
    limit_lines,
)
from graphile_worker.ops.diagnostics.findings import Finding, FindingId, Severity
from graphile_worker.ops.text import pluralize

# Parts of what there is: time to act, and high time.
SEQUENCE_WARNING_RATIO, SEQUENCE_CRITICAL_RATIO = 0.5, 0.8

NOTIFY_WARNING_RATIO, NOTIFY_CRITICAL_RATIO = 0.1, 0.5
CONNECTIONS_WARNING_RATIO = 0.9

# So many dead rows are nothing, however few live.
MIN_DEAD_ROWS = 10_000

AUTOVACUUM_SETTINGS = ("autovacuum", "track_counts")
DURABILITY_SETTINGS = ("fsync", "full_page_writes")


# Ids


def plan_check_sequences(context: DiagnosticContext) -> FindingsPlan:
    """How far the ids are; those of tasks and named queues end at two thousand million."""
    found: list[Finding] = []
    for each in (yield diagnostics.get_sequences(context.schemas)):
        if each.fill_ratio < SEQUENCE_WARNING_RATIO:
            continue
        free: FreeIds | None = None
        if each.table == "_private_tasks":
            free = yield diagnostics.find_free_task_ids()
        elif each.table == "_private_job_queues":
            free = yield diagnostics.find_free_queue_ids()
        found.append(_build_sequence_finding(each, free, context))
    return found


def _build_sequence_finding(
    ids: IdSequence, free: FreeIds | None, context: DiagnosticContext
) -> Finding:
    restart = None if free is None else _format_restart_sql(ids, free, context)
    room = () if free is None else (f"{free.count:,} ids are free from {free.first} on",)
    return Finding(
        id=FindingId.SEQUENCE_FILL,
        severity=Severity.CRITICAL
        if ids.fill_ratio >= SEQUENCE_CRITICAL_RATIO
        else Severity.WARNING,
        title=f"{ids.fill_ratio:.1%} of the ids of {ids.table} are used up; then no job can be "
        "added",
        evidence=(f"{ids.sequence} is at {ids.last_value:,} of {ids.max_value:,}", *room),
        advice="Below level 20 every job that is added uses one up, so migrate first. Then let the "
        "owner of the sequence go on with ids that are free.",
        shell=context.format_command("migrate"),
        sql=restart,
    )


def _format_restart_sql(ids: IdSequence, free: FreeIds, context: DiagnosticContext) -> str:
    return context.format_remedy("restart_sequence", sequence=ids.sequence, first=free.first)


# Vacuum


def plan_check_vacuum_blockers(context: DiagnosticContext) -> FindingsPlan:
    held = yield storage.get_vacuum_blockers(
        int(context.options.max_transaction_age.total_seconds())
    )
    return list(check_vacuum_blockers(held, context))


def check_vacuum_blockers(
    blockers: list[VacuumBlocker], context: DiagnosticContext
) -> Iterator[Finding]:
    if blockers:
        yield Finding(
            id=FindingId.HELD_SNAPSHOT,
            severity=Severity.WARNING,
            title="an old snapshot is held: no row that died since can be removed",
            evidence=limit_lines([_format_vacuum_blocker(each) for each in blockers]),
            advice="End the oldest, if nobody needs it. Let long reports run on a standby without "
            "feedback.",
            sql=_format_end_sql(blockers[0], context),
        )


def _format_vacuum_blocker(blocker: VacuumBlocker) -> str:
    state = f", {blocker.state}" if blocker.state else ""
    since = "" if blocker.seconds is None else f" for {format_duration(blocker.seconds)}"
    behind = pluralize(blocker.transactions, "transaction")
    return f"{blocker.kind} {blocker.name}{state}{since}, {behind} behind"


def _format_end_sql(blocker: VacuumBlocker, context: DiagnosticContext) -> str:
    if blocker.kind == "replication slot":
        return context.format_remedy("drop_replication_slot", name=blocker.name)
    if blocker.kind == "prepared transaction":
        return context.format_remedy("rollback_prepared", name=blocker.name)
    # Its name begins with the number of its process.
    return context.format_remedy("terminate_session", pid=int(blocker.name.partition(",")[0]))


def plan_check_dead_rows(context: DiagnosticContext) -> FindingsPlan:
    settings = yield storage.get_server_settings(list(AUTOVACUUM_SETTINGS))
    tables = yield diagnostics.get_dead_rows(context.schemas)
    return [*check_autovacuum(settings, tables, context), *check_dead_rows(tables, context)]


def check_autovacuum(
    settings: Mapping[str, ServerSetting], tables: Iterable[DeadRows], context: DiagnosticContext
) -> Iterator[Finding]:
    off = _list_disabled(settings)
    of_tables = [each.table for each in tables if each.is_autovacuum_off]
    if off or of_tables:
        yield Finding(
            id=FindingId.AUTOVACUUM_OFF,
            severity=Severity.WARNING,
            title="nobody removes the rows of jobs that are done",
            evidence=(
                *[f"{each} is off" for each in off],
                *[f"autovacuum is off for {each}" for each in of_tables],
            ),
            advice="Turn it on: for the server, by who may; for the tables, by their owner.",
            shell=context.format_command("tune --apply"),
            sql=_format_enable_sql(off, context),
        )


def check_dead_rows(tables: Iterable[DeadRows], context: DiagnosticContext) -> Iterator[Finding]:
    many = [each for each in tables if each.dead_rows > max(MIN_DEAD_ROWS, each.live_rows / 2)]
    if many:
        yield Finding(
            id=FindingId.DEAD_ROWS,
            severity=Severity.WARNING,
            title="dead rows lie in the way of every fetch",
            evidence=tuple(_format_dead_rows(each) for each in many),
            advice="Let vacuum follow more closely, see that no held-snapshot keeps it from doing "
            "so, and vacuum once by hand.",
            shell=context.format_command("tune --apply"),
            sql="\n".join(context.format_remedy("vacuum", table=each.table) for each in many),
        )


def _format_dead_rows(rows: DeadRows) -> str:
    when = (
        "never"
        if rows.seconds_since_vacuum is None
        else f"{format_duration(rows.seconds_since_vacuum)} ago"
    )
    return f"{rows.table}: {rows.dead_rows:,} dead beside {rows.live_rows:,}, last vacuum {when}"


# Room


def plan_check_notify_queue(context: DiagnosticContext) -> FindingsPlan:
    usage = yield diagnostics.get_notify_usage()
    return list(check_notify_queue(usage, context))


def check_notify_queue(usage: float, context: DiagnosticContext) -> Iterator[Finding]:
    if usage >= NOTIFY_WARNING_RATIO:
        yield Finding(
            id=FindingId.NOTIFY_QUEUE,
            severity=Severity.CRITICAL if usage >= NOTIFY_CRITICAL_RATIO else Severity.WARNING,
            title=f"the room for notifications is {usage:.0%} full; once it is, no job can be "
            "added",
            evidence=("somebody listens and does not read, most likely in an open transaction",),
            advice="End the transaction of the session that listens; it is among these:",
            sql=context.format_remedy("list_open_transactions"),
        )


def plan_check_connections(context: DiagnosticContext) -> FindingsPlan:
    found = yield diagnostics.count_connections()
    return list(check_connections(found, context))


def check_connections(found: ConnectionUsage, context: DiagnosticContext) -> Iterator[Finding]:
    if found.used >= found.max_usable * CONNECTIONS_WARNING_RATIO:
        yield Finding(
            id=FindingId.CONNECTIONS_FULL,
            severity=Severity.WARNING,
            title=f"{found.used} of {found.max_usable} connections are taken",
            evidence=("a worker that finds none takes no jobs, and cannot say that it lives",),
            advice="See who has them; lower max_pool_size, or raise max_connections.",
            sql=context.format_remedy("count_sessions"),
        )


# Settings


def plan_check_settings(context: DiagnosticContext) -> FindingsPlan:
    settings = yield storage.get_server_settings(list(DURABILITY_SETTINGS))
    off = _list_disabled(settings)
    if not off:
        return []
    return [
        Finding(
            id=FindingId.UNSAFE_SERVER,
            severity=Severity.WARNING,
            title="a crash of the machine can lose or damage jobs",
            evidence=tuple(f"{each} is off" for each in off),
            advice="Fine for tests. Otherwise turn it on.",
            sql=_format_enable_sql(off, context),
        )
    ]


def _list_disabled(settings: Mapping[str, ServerSetting]) -> list[str]:
    return [name for name, each in settings.items() if each.value == "off"]


def _format_enable_sql(settings: list[str], context: DiagnosticContext) -> str | None:
    if not settings:
        return None
    changes = [context.format_remedy("enable_setting", setting=each) for each in settings]
    return "\n".join([*changes, context.format_remedy("reload_config")])
