"""Checks of the server: ids, old snapshots, dead rows, notifications, connections, settings."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta

from graphile_worker._sql.queries import diagnostics, storage
from graphile_worker._sql.queries.diagnostics import DeadRows, FreeIds, IdSequence
from graphile_worker._sql.queries.storage import ServerSetting, VacuumBlocker
from graphile_worker._sql.queries.workers import RescueLockHolder, get_rescue_lock_holders
from graphile_worker._support.text import pluralize
from graphile_worker.ops.diagnostics.context import (
    DiagnosticContext,
    DoctorContext,
    FindingsPlan,
    QueueContext,
)
from graphile_worker.ops.diagnostics.findings import Finding, FindingId, Severity
from graphile_worker.ops.text import format_seconds, format_vacuum_blocker, limit_lines

AUTOVACUUM_SETTINGS = ("autovacuum", "track_counts")
DURABILITY_SETTINGS = ("fsync", "full_page_writes")

# A commit holds the lock of notifications for milliseconds.
NOTIFY_LOCK_SAMPLES = 5
NOTIFY_LOCK_SAMPLE_INTERVAL = timedelta(milliseconds=20)


# Rules over a snapshot


def check_vacuum_blockers(context: QueueContext) -> Iterator[Finding]:
    """Report old transactions and slots, which keep vacuum from removing dead rows."""
    return _report_vacuum_blockers(context.snapshot.server.vacuum_blockers, context)


def check_dead_rows(context: QueueContext) -> Iterator[Finding]:
    """Report tables with many dead rows, if vacuum does not keep up."""
    return _report_dead_rows(context.snapshot.server.tables, context)


# The same without a snapshot, for a queue that cannot be read


def plan_check_vacuum_blockers(context: DoctorContext) -> FindingsPlan:
    """Report old transactions and slots."""
    blockers = yield storage.get_vacuum_blockers(context.thresholds.max_transaction_age)
    return list(_report_vacuum_blockers(blockers, context))


def plan_check_dead_rows(context: DoctorContext) -> FindingsPlan:
    """Report tables with many dead rows."""
    tables = yield diagnostics.get_dead_rows(context.schemas)
    return list(_report_dead_rows(tables, context))


def _report_vacuum_blockers(
    blockers: Sequence[VacuumBlocker], context: DiagnosticContext
) -> Iterator[Finding]:
    if blockers:
        yield Finding(
            id=FindingId.HELD_SNAPSHOT,
            severity=Severity.WARNING,
            title="an old snapshot is held: vacuum cannot remove rows that died since",
            evidence=limit_lines([format_vacuum_blocker(each) for each in blockers]),
            advice="End the oldest, if it is not needed. Run long reports on a standby without "
            "feedback.",
            sql=_format_end_sql(blockers[0], context),
        )


def _format_end_sql(blocker: VacuumBlocker, context: DiagnosticContext) -> str:
    if blocker.kind == "replication slot":
        return context.format_remedy("drop_replication_slot", name=blocker.name)
    if blocker.kind == "prepared transaction":
        return context.format_remedy("rollback_prepared", name=blocker.name)
    # The name of a session begins with its process id.
    return context.format_remedy("terminate_session", pid=int(blocker.name.partition(",")[0]))


def _report_dead_rows(rows: Iterable[DeadRows], context: DiagnosticContext) -> Iterator[Finding]:
    limits = context.thresholds
    overdue = limits.vacuum_overdue_after.total_seconds()
    tables = [
        each
        for each in rows
        if each.dead_rows > limits.min_dead_rows
        if each.dead_rows > each.live_rows
        or each.seconds_since_vacuum is None
        or each.seconds_since_vacuum > overdue
    ]
    if tables:
        yield Finding(
            id=FindingId.DEAD_ROWS,
            severity=Severity.WARNING,
            title="dead rows slow down every fetch",
            evidence=tuple(_format_dead_rows(each) for each in tables),
            advice="Make vacuum run more often, end what holds an old snapshot, and vacuum once by "
            "hand.",
            shell=context.format_command("tune --apply"),
            sql="\n".join(context.format_remedy("vacuum", table=each.table) for each in tables),
        )


def _format_dead_rows(table: DeadRows) -> str:
    seconds = table.seconds_since_vacuum
    when = "never" if seconds is None else f"{format_seconds(seconds)} ago"
    return f"{table.table}: {table.dead_rows:,} dead beside {table.live_rows:,}, last vacuum {when}"


# Checks with queries


def plan_check_sequences(context: DoctorContext) -> FindingsPlan:
    """Report sequences of ids that run out. The ids of tasks and queues have 31 bits."""
    findings: list[Finding] = []
    for each in (yield diagnostics.get_sequences(context.schemas)):
        if each.fill_ratio < context.thresholds.sequence_warning:
            continue
        free: FreeIds | None = None
        if each.table == "_private_tasks":
            free = yield diagnostics.find_free_task_ids()
        elif each.table == "_private_job_queues":
            free = yield diagnostics.find_free_queue_ids()
        findings.append(_build_sequence_finding(each, free, context))
    return findings


def _build_sequence_finding(
    ids: IdSequence, free: FreeIds | None, context: DoctorContext
) -> Finding:
    is_critical = ids.fill_ratio >= context.thresholds.sequence_critical
    return Finding(
        id=FindingId.SEQUENCE_FILL,
        severity=Severity.CRITICAL if is_critical else Severity.WARNING,
        title=f"{ids.fill_ratio:.1%} of the ids of {ids.table} are used up; after the last, no job "
        "can be added",
        evidence=(
            f"{ids.sequence} is at {ids.last_value:,} of {ids.max_value:,}",
            *(() if free is None else (f"{free.count:,} ids are free from {free.first} on",)),
        ),
        advice="Below level 20 every added job uses one up, so migrate first. Then restart the "
        "sequence, as its owner, with free ids.",
        shell=context.format_command("migrate"),
        sql=None
        if free is None
        else context.format_remedy("restart_sequence", sequence=ids.sequence, first=free.first),
    )


def plan_check_autovacuum(context: DoctorContext) -> FindingsPlan:
    """Report that autovacuum is off, for the server or for a table."""
    settings = yield storage.get_server_settings(list(AUTOVACUUM_SETTINGS))
    rows = yield diagnostics.get_dead_rows(context.schemas)
    off = _list_disabled(settings)
    tables = [each.table for each in rows if each.is_autovacuum_off]
    if not off and not tables:
        return []
    return [
        Finding(
            id=FindingId.AUTOVACUUM_OFF,
            severity=Severity.WARNING,
            title="the server does not remove the rows of completed jobs",
            evidence=(
                *[f"{each} is off" for each in off],
                *[f"autovacuum is off for {each}" for each in tables],
            ),
            advice="Turn it on: for the server as an administrator, for the tables as their owner.",
            shell=context.format_command("tune --apply"),
            sql=_format_enable_sql(off, context),
        )
    ]


def plan_check_notify_queue(context: DoctorContext) -> FindingsPlan:
    """Report that the server's notification queue fills up."""
    usage = yield diagnostics.get_notify_usage()
    limits = context.thresholds
    if usage < limits.notify_warning:
        return []
    return [
        Finding(
            id=FindingId.NOTIFY_QUEUE,
            severity=Severity.CRITICAL if usage >= limits.notify_critical else Severity.WARNING,
            title=f"the notification queue is {usage:.0%} full; at 100%, no job can be added",
            evidence=("a session listens and does not read, most likely in an open transaction",),
            advice="End the transaction of the session that listens; it is one of these:",
            sql=context.format_remedy("list_open_transactions"),
        )
    ]


def plan_check_notify_lock(context: DoctorContext) -> FindingsPlan:
    """Report that commits wait for each other, because each of them notifies workers."""
    counts: list[int] = []
    for _ in range(NOTIFY_LOCK_SAMPLES):
        counts.append((yield diagnostics.count_notify_waiters(NOTIFY_LOCK_SAMPLE_INTERVAL)))
    share = sum(count > 0 for count in counts) / len(counts)
    if share < context.thresholds.notify_lock_warning:
        return []
    return [
        Finding(
            id=FindingId.NOTIFY_LOCK,
            severity=Severity.WARNING,
            title="commits that notify workers wait for each other: "
            f"up to {pluralize(max(counts), 'session')} at once",
            evidence=(
                "each commit with a NOTIFY holds a lock that all databases of the server share",
            ),
            advice="If these sessions add jobs, create their app or client with "
            'notify="coalesced", or add many jobs per call.',
        )
    ]


def plan_check_connections(context: DoctorContext) -> FindingsPlan:
    """Report that the server runs out of connections."""
    connections = yield diagnostics.count_connections()
    if connections.used < connections.max_usable * context.thresholds.connections_warning:
        return []
    return [
        Finding(
            id=FindingId.CONNECTIONS_FULL,
            severity=Severity.WARNING,
            title=f"{connections.used} of {connections.max_usable} connections are in use",
            evidence=("a worker without a connection claims no jobs and sends no heartbeats",),
            advice="List the sessions; lower max_pool_size, or raise max_connections.",
            sql=context.format_remedy("count_sessions"),
        )
    ]


def plan_check_durability(context: DoctorContext) -> FindingsPlan:
    """Report settings with which a crash of the machine loses jobs."""
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
            advice="This is fine for tests. Otherwise turn them on.",
            sql=_format_enable_sql(off, context),
        )
    ]


def plan_check_rescue_lock(context: DoctorContext) -> FindingsPlan:
    """Report sessions that keep workers from recovering the jobs of dead workers."""
    holders: Iterable[RescueLockHolder] = yield get_rescue_lock_holders(context.schemas)
    limit = context.thresholds.max_transaction_age.total_seconds()
    # A worker that recovers jobs holds the lock too, for a minute at most.
    long_holders = [each for each in holders if each.seconds is None or each.seconds >= limit]
    if not long_holders:
        return []
    pids = [each.pid for each in long_holders if each.pid is not None]
    return [
        Finding(
            id=FindingId.RESCUE_LOCK_HELD,
            severity=Severity.WARNING,
            title="a session holds the rescue lock: jobs of dead workers are recovered later",
            evidence=limit_lines([_format_rescue_lock_holder(each) for each in long_holders]),
            advice="End it, unless it is a worker that recovers jobs right now.",
            sql="\n".join(context.format_remedy("terminate_session", pid=each) for each in pids)
            or None,
        )
    ]


def _format_rescue_lock_holder(holder: RescueLockHolder) -> str:
    if holder.seconds is None:
        return str(holder)
    return f"{holder}, in a transaction for {format_seconds(holder.seconds)}"


def _list_disabled(settings: Mapping[str, ServerSetting]) -> list[str]:
    return [name for name, each in settings.items() if each.value == "off"]


def _format_enable_sql(settings: list[str], context: DoctorContext) -> str | None:
    if not settings:
        return None
    changes = [context.format_remedy("enable_setting", setting=each) for each in settings]
    return "\n".join([*changes, context.format_remedy("reload_config")])
