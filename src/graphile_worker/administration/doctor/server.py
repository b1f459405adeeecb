"""The server: what is full, what is held, what is turned off."""

from collections.abc import Iterable, Iterator, Mapping

from graphile_worker.administration.doctor.case import Case, Findings, lasting, lines
from graphile_worker.administration.doctor.finding import Finding, FindingId, Severity
from graphile_worker.administration.wording import counted
from graphile_worker.sql import health, storage
from graphile_worker.sql.health import Connections, DeadRows, FreeIds, IdSequence
from graphile_worker.sql.storage import HeldSnapshot, ServerSetting

# Parts of what there is: time to act, and high time.
HALF_FULL, NEARLY_FULL = 0.5, 0.8

NOTIFY_FILLING, NOTIFY_NEARLY_FULL = 0.1, 0.5
CONNECTIONS_FULL = 0.9

# So many dead rows are nothing, however few live.
FEW_DEAD = 10_000

AUTOVACUUM = ("autovacuum", "track_counts")
SAFETY = ("fsync", "full_page_writes")


# Ids


def measuring_sequences(case: Case) -> Findings:
    """How far the ids are; those of tasks and named queues end at two thousand million."""
    found: list[Finding] = []
    for each in (yield health.get_sequences(case.schemas)):
        if each.fill < HALF_FULL:
            continue
        free: FreeIds | None = None
        if each.table == "_private_tasks":
            free = yield health.find_free_task_ids()
        elif each.table == "_private_job_queues":
            free = yield health.find_free_queue_ids()
        found.append(_filling(each, free, case))
    return found


def _filling(ids: IdSequence, free: FreeIds | None, case: Case) -> Finding:
    restart = None if free is None else _restart(ids, free, case)
    room = () if free is None else (f"{free.count:,} ids are free from {free.first} on",)
    return Finding(
        id=FindingId.SEQUENCE_FILL,
        severity=Severity.CRITICAL if ids.fill >= NEARLY_FULL else Severity.WARNING,
        title=f"{ids.fill:.1%} of the ids of {ids.table} are used up; then no job can be added",
        evidence=(f"{ids.sequence} is at {ids.last:,} of {ids.most:,}", *room),
        advice="Below level 20 every job that is added uses one up, so migrate first. Then let the "
        "owner of the sequence go on with ids that are free.",
        shell=case.command("migrate"),
        sql=restart,
    )


def _restart(ids: IdSequence, free: FreeIds, case: Case) -> str:
    return case.cure("restart_sequence", sequence=ids.sequence, first=free.first)


# Vacuum


def finding_snapshots(case: Case) -> Findings:
    held = yield storage.get_held_snapshots(int(case.options.held_for.total_seconds()))
    return list(held_snapshots(held, case))


def held_snapshots(held: list[HeldSnapshot], case: Case) -> Iterator[Finding]:
    if held:
        yield Finding(
            id=FindingId.HELD_SNAPSHOT,
            severity=Severity.WARNING,
            title="an old snapshot is held: no row that died since can be removed",
            evidence=lines([_holder(each) for each in held]),
            advice="End the oldest, if nobody needs it. Let long reports run on a standby without "
            "feedback.",
            sql=_ending(held[0], case),
        )


def _holder(held: HeldSnapshot) -> str:
    state = f", {held.state}" if held.state else ""
    since = "" if held.seconds is None else f" for {lasting(held.seconds)}"
    behind = counted(held.transactions, "transaction")
    return f"{held.kind} {held.name}{state}{since}, {behind} behind"


def _ending(held: HeldSnapshot, case: Case) -> str:
    if held.kind == "replication slot":
        return case.cure("drop_slot", name=held.name)
    if held.kind == "prepared transaction":
        return case.cure("roll_back", name=held.name)
    # Its name begins with the number of its process.
    return case.cure("end_session", pid=int(held.name.partition(",")[0]))


def measuring_dead_rows(case: Case) -> Findings:
    settings = yield storage.get_server_settings(list(AUTOVACUUM))
    tables = yield health.get_dead_rows(case.schemas)
    return [*autovacuum_off(settings, tables, case), *dead_rows(tables, case)]


def autovacuum_off(
    settings: Mapping[str, ServerSetting], tables: Iterable[DeadRows], case: Case
) -> Iterator[Finding]:
    off = _turned_off(settings)
    of_tables = [each.table for each in tables if each.is_off]
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
            shell=case.command("tune --apply"),
            sql=_turning_on(off, case),
        )


def dead_rows(tables: Iterable[DeadRows], case: Case) -> Iterator[Finding]:
    many = [each for each in tables if each.dead > max(FEW_DEAD, each.live / 2)]
    if many:
        yield Finding(
            id=FindingId.DEAD_ROWS,
            severity=Severity.WARNING,
            title="dead rows lie in the way of every fetch",
            evidence=tuple(_dead(each) for each in many),
            advice="Let vacuum follow more closely, see that no held-snapshot keeps it from doing "
            "so, and vacuum once by hand.",
            shell=case.command("tune --apply"),
            sql="\n".join(case.cure("vacuum", table=each.table) for each in many),
        )


def _dead(rows: DeadRows) -> str:
    when = "never" if rows.since is None else f"{lasting(rows.since)} ago"
    return f"{rows.table}: {rows.dead:,} dead beside {rows.live:,}, last vacuum {when}"


# Room


def measuring_notifications(case: Case) -> Findings:
    usage = yield health.get_notify_usage()
    return list(notify_queue(usage, case))


def notify_queue(usage: float, case: Case) -> Iterator[Finding]:
    if usage >= NOTIFY_FILLING:
        yield Finding(
            id=FindingId.NOTIFY_QUEUE,
            severity=Severity.CRITICAL if usage >= NOTIFY_NEARLY_FULL else Severity.WARNING,
            title=f"the room for notifications is {usage:.0%} full; once it is, no job can be "
            "added",
            evidence=("somebody listens and does not read, most likely in an open transaction",),
            advice="End the transaction of the session that listens; it is among these:",
            sql=case.cure("find_listener"),
        )


def counting_connections(case: Case) -> Findings:
    found = yield health.count_connections()
    return list(connections_full(found, case))


def connections_full(found: Connections, case: Case) -> Iterator[Finding]:
    if found.used >= found.usable * CONNECTIONS_FULL:
        yield Finding(
            id=FindingId.CONNECTIONS_FULL,
            severity=Severity.WARNING,
            title=f"{found.used} of {found.usable} connections are taken",
            evidence=("a worker that finds none takes no jobs, and cannot say that it lives",),
            advice="See who has them; lower max_pool_size, or raise max_connections.",
            sql=case.cure("find_sessions"),
        )


# Settings


def reading_settings(case: Case) -> Findings:
    settings = yield storage.get_server_settings(list(SAFETY))
    off = _turned_off(settings)
    if not off:
        return []
    return [
        Finding(
            id=FindingId.UNSAFE_SERVER,
            severity=Severity.WARNING,
            title="a crash of the machine can lose or damage jobs",
            evidence=tuple(f"{each} is off" for each in off),
            advice="Fine for tests. Otherwise turn it on.",
            sql=_turning_on(off, case),
        )
    ]


def _turned_off(settings: Mapping[str, ServerSetting]) -> list[str]:
    return [name for name, each in settings.items() if each.value == "off"]


def _turning_on(settings: list[str], case: Case) -> str | None:
    if not settings:
        return None
    changes = [case.cure("turn_on", setting=each) for each in settings]
    return "\n".join([*changes, case.cure("reload")])
