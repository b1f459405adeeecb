"""The metrics of a queue, as the database has it: what a look reads, and what a sample counts.

A sample reads every job once, so processes share it and pause after it. A look reads a few entries
of indexes, so each process has its own, and its values are fresh.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from graphile_worker._metrics import definitions
from graphile_worker._metrics.definitions import OTHER_LABEL, QUEUE_METRICS, Metric
from graphile_worker._metrics.values import (
    Families,
    Samples,
    decode_families,
    encode_families,
)
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.pauses import plan_get_paused_tasks
from graphile_worker._sql.queries.limits import (
    LimitAccess,
    LimitState,
    check_limits,
    list_limits,
)
from graphile_worker._sql.queries.metrics import (
    OldestReadyRow,
    QueueStorage,
    SampleAccess,
    StoredSample,
    count_runnable,
    count_runnable_indexed,
    get_oldest_ready,
    get_queue_storage,
    get_sample,
    inspect_samples,
    set_probe_limits,
    set_sample_limits,
)
from graphile_worker._sql.queries.search import list_task_names
from graphile_worker._sql.query import Plan
from graphile_worker.errors import GraphileWorkerError
from graphile_worker.limits import ConcurrencyLimit
from graphile_worker.ops.pools import POOL_ID_PATTERNS, PoolHealth, PoolInfo
from graphile_worker.ops.snapshot import (
    MAX_PAUSE_SECONDS,
    PAUSE_FACTOR,
    Snapshot,
    TaskCount,
    plan_snapshot,
)
from graphile_worker.ops.states import JobState
from graphile_worker.tasks.selection import has_pattern, match_tasks

# The shortest pause after a look, and after a sample.
MIN_PAUSE_SECONDS = 5.0

# Task labels. Further tasks share one, those with the fewest jobs.
MAX_TASKS = 200

# Tasks whose names a count compares with patterns.
MAX_TASK_NAMES = 10_000

# Pairs of a task and a priority that a look reads, and named queues that it reads.
MAX_LANES = 1_000
MAX_QUEUES = 10_000

# Jobs of a pair that a look reads to find one whose named queue is not locked.
MAX_QUEUED_JOBS = 100

# Limits with metrics of their slots.
MAX_LIMITS = 100

# A part of the number of runnable jobs is not counted further.
MAX_RUNNABLE = 10_000

# Processor time of the server for a sample of 1,000,000 jobs in 5,000 named queues, and for a look
# at them. A test each night measures both.
SAMPLE_BUDGET_SECONDS = 2.0
LOOK_BUDGET_SECONDS = 0.2

# A time of '-infinity' becomes this age. JSON has no infinity.
MAX_AGE_SECONDS = 36_500 * 86_400.0

RUNTIMES = (*POOL_ID_PATTERNS, "unknown")

# Open transactions of any age are reported.
NO_AGE = timedelta(0)


class RowsHiddenError(GraphileWorkerError):
    """Row level security hides all jobs from this role, so that every number would be 0."""

    def __init__(self, schema: str) -> None:
        super().__init__(
            f"row level security hides all jobs of schema {schema!r} from this role. Create the "
            "policies of queue_reader in docs/operations/permissions-and-security.md."
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What a process reads each time."""

    access: SampleAccess
    shared_sample: StoredSample | None = None
    oldest_ready: Sequence[OldestReadyRow] | None = None
    """None without the indexes. The sample has the value then."""
    runnable: int | None = None


def plan_look(schemas: Schemas) -> Plan[Look]:
    """Read the shared sample, and the values that are always fresh.

    Raises:
        RowsHiddenError: If row level security hides the jobs.
    """
    access = yield from _plan_inspect(schemas)
    sample: StoredSample | None = (yield get_sample()) if access.can_read else None
    if not access.has_indexes:
        return Look(access=access, shared_sample=sample)
    oldest_ready = yield get_oldest_ready(MAX_LANES, MAX_QUEUED_JOBS)
    paused = yield from plan_get_paused_tasks(schemas)
    runnable = yield count_runnable_indexed(None, MAX_RUNNABLE, MAX_QUEUES, paused)
    return Look(access=access, shared_sample=sample, oldest_ready=oldest_ready, runnable=runnable)


def _plan_inspect(schemas: Schemas) -> Plan[SampleAccess]:
    access: SampleAccess = yield inspect_samples(schemas)
    if access.has_hidden_rows:
        # An autoscaler must not take 0 for the number of jobs.
        raise RowsHiddenError(schemas.shared)
    return access


def plan_count_runnable(
    schemas: Schemas,
    tasks: Sequence[str] | None,
    limit: int,
    timeout: timedelta,
    *,
    excluded: Sequence[str] = (),
) -> Plan[int]:
    """Count the jobs that run or could run, as `count_runnable.sql` defines, in a transaction.

    Args:
        schemas: The schemas of the queue.
        tasks: The tasks to count, as names or patterns, or None for all.
        limit: Stop each part of the count there.
        timeout: The time limit of each statement.
        excluded: The tasks to leave out.

    Raises:
        RowsHiddenError: If row level security hides the jobs.
    """
    names = None if tasks is None else list(tasks)
    yield set_sample_limits(timeout, read_only=True)
    access = yield from _plan_inspect(schemas)
    if excluded or has_pattern(tasks or ()):
        known: list[str] = yield list_task_names(MAX_TASK_NAMES)
        names = match_tasks(known, tasks, excluded)
    paused = yield from plan_get_paused_tasks(schemas)
    if not access.has_indexes:
        # It reads the whole table, and not by an index.
        count: int = yield count_runnable(names, limit, paused)
        return count
    yield set_probe_limits(timeout)
    count = yield count_runnable_indexed(names, limit, MAX_QUEUES, paused)
    return count


def plan_sample(schemas: Schemas, *, has_indexes: bool) -> Plan[Families]:
    """Take a sample.

    Args:
        schemas: The schemas of the queue.
        has_indexes: Whether a look counts the runnable jobs. If not, the sample does.

    Raises:
        SchemaMissing: If the schema is not installed.
        RowsHiddenError: If row level security hides the jobs.
    """
    snapshot = yield from plan_snapshot(schemas, NO_AGE)
    if snapshot.server.has_hidden_rows:
        raise RowsHiddenError(schemas.shared)
    storage: QueueStorage = yield get_queue_storage(schemas)
    families = build_sample_families(snapshot, storage)
    if slots := (yield from _plan_count_slots(schemas)):
        families[definitions.LIMIT_SLOTS] = slots
    if not has_indexes:
        paused = yield from plan_get_paused_tasks(schemas)
        runnable = yield count_runnable(None, MAX_RUNNABLE, paused)
        families[definitions.QUEUE_RUNNABLE] = {(): float(runnable)}
    return families


def _plan_count_slots(schemas: Schemas) -> Plan[Samples]:
    """Count the slots of the first concurrency limits. Empty without limits."""
    access: LimitAccess = yield check_limits(schemas)
    states: list[LimitState] = (yield list_limits(MAX_LIMITS)) if access.can_read else []
    return {
        (each.name, state): float(value)
        for each in states
        if isinstance(each.limit, ConcurrencyLimit)
        for state, value in (
            ("size", each.limit.slots),
            ("used", each.used_slots),
            ("wanted", each.is_wanted),
        )
    }


def build_sample_families(snapshot: Snapshot, storage: QueueStorage) -> Families:
    """Build the metrics of a sample."""
    server = snapshot.server
    # The snapshot names these by their id.
    unnamed = {f"task id {id}" for id in snapshot.missing_tasks}
    tasks = _choose_labels(snapshot.tasks, unnamed)
    dead_rows = sum(each.dead_rows for each in server.tables if each.table == "_private_jobs")
    ages = [each.seconds for each in server.vacuum_blockers if each.seconds is not None]
    families: Families = {
        definitions.QUEUE_JOBS: _count_jobs(snapshot.tasks, tasks),
        definitions.QUEUE_OLDEST_READY: _get_oldest_ready(snapshot.tasks, tasks),
        definitions.QUEUES_LOCKED: {(): float(storage.locked_queues)},
        definitions.STALE_LOCKS: {(): float(snapshot.count(JobState.STALE))},
        definitions.WORKERS: _count_workers(snapshot.pools),
        definitions.TABLE_INSERTED: {(): float(server.rows_added)},
        definitions.TABLE_DELETED: {(): float(server.rows_deleted)},
        definitions.TABLE_DEAD_ROWS: {(): float(dead_rows)},
        definitions.TABLE_BYTES: {(): float(storage.table_bytes)},
        definitions.OLDEST_TRANSACTION: {(): float(max([0, *ages]))},
        definitions.NOTIFY_QUEUE_USAGE: {(): float(storage.notify_ratio)},
    }
    if storage.sequence_ratio is not None:
        families[definitions.SEQUENCE_USAGE] = {(): storage.sequence_ratio}
    return families


def build_look_families(look: Look, sample: Families) -> Families:
    """Build the metrics of a look. Where it has no value, that of the sample is taken."""
    known = {labels[0] for labels in sample.get(definitions.QUEUE_JOBS, {})}
    sampled = {
        labels[0]: value
        for labels, value in sample.get(definitions.QUEUE_OLDEST_READY, {}).items()
        if isinstance(value, float | int)
    }
    runnable = sample.get(definitions.QUEUE_RUNNABLE, {})
    if look.runnable is not None:
        runnable = {(): float(look.runnable)}
    oldest = _merge_oldest_ready(look.oldest_ready, sampled)
    return {
        definitions.QUEUE_OLDEST_READY: _bound_oldest_ready(oldest, known),
        definitions.QUEUE_RUNNABLE: runnable,
    }


def encode_sample(families: Families) -> str:
    """Encode a sample for the database."""
    return encode_families(families).decode()


def decode_sample(body: str) -> Families:
    """Decode a shared sample. Another version may have written it, so each value is checked."""
    try:
        families = decode_families(body)
    except (ValueError, TypeError, RecursionError, IndexError, AttributeError):
        return {}
    return {
        metric: _keep_valid(metric, samples)
        for metric, samples in families.items()
        if metric in QUEUE_METRICS
    }


def add_missing_states(jobs: Samples) -> Samples:
    """Add a 0 for each state that a task has no jobs in, so that no time series ends."""
    tasks = {labels[0]: None for labels in jobs}
    return {
        (task, state.value): jobs.get((task, state.value), 0.0)
        for task in tasks
        for state in JobState
    }


def compute_pause(duration: float, shortest: float = MIN_PAUSE_SECONDS) -> float:
    """Compute the seconds to wait after a look or a sample that took `duration` seconds."""
    return max(shortest, min(duration * PAUSE_FACTOR, MAX_PAUSE_SECONDS))


def _keep_valid(metric: Metric, samples: Samples) -> Samples:
    return {
        labels: value
        for labels, value in samples.items()
        if len(labels) == len(metric.labels)
        and all(isinstance(each, str) for each in labels)
        and isinstance(value, float | int)
        and math.isfinite(value)
    }


# Tasks


def _choose_labels(tasks: Iterable[TaskCount], unnamed: set[str]) -> dict[str, str]:
    """Map each task to its label."""
    totals = Counter[str]()
    for task in tasks:
        totals[task.identifier] += sum(task.counts.values())
    named = [name for name, _ in totals.most_common() if name not in unnamed]
    kept = set(named[:MAX_TASKS])
    return {name: name if name in kept else OTHER_LABEL for name in totals}


def _count_jobs(tasks: Iterable[TaskCount], labels: Mapping[str, str]) -> Samples:
    counts: dict[tuple[str, ...], float] = defaultdict(float)
    for task in tasks:
        for state, count in task.counts.items():
            counts[labels[task.identifier], state.value] += count
    return dict(counts)


def _get_oldest_ready(tasks: Iterable[TaskCount], labels: Mapping[str, str]) -> Samples:
    oldest: dict[str, float] = defaultdict(float)
    for task in tasks:
        label = labels[task.identifier]
        oldest[label] = max(oldest[label], _clamp_age(task.oldest_ready))
    return {(label,): age for label, age in oldest.items()}


def _merge_oldest_ready(
    rows: Sequence[OldestReadyRow] | None, sampled: Mapping[str, float]
) -> dict[str, float]:
    if rows is None:
        return dict(sampled)
    # Tasks of the sample without a row have no available job, unless some tasks were not read.
    is_complete = all(row.is_complete for row in rows)
    oldest = {task: 0.0 if is_complete else age for task, age in sampled.items()}
    for row in rows:
        age = _clamp_age(row.seconds)
        oldest[row.task] = age if row.is_certain else max(age, sampled.get(row.task, 0.0))
    return oldest


def _bound_oldest_ready(oldest: Mapping[str, float], known: set[str]) -> Samples:
    """Keep the tasks of the sample, and new ones while there is room."""
    kept = [task for task in oldest if task in known]
    new = sorted(oldest.keys() - known, key=lambda task: -oldest[task])
    kept += new[: max(0, MAX_TASKS - len(known - {OTHER_LABEL}))]
    bounded: Samples = {(task,): oldest[task] for task in kept}
    rest = [oldest[task] for task in oldest.keys() - set(kept)]
    if rest:
        bounded[OTHER_LABEL,] = max([*rest, oldest.get(OTHER_LABEL, 0.0)])
    return bounded


def _clamp_age(age: float | None) -> float:
    return min(max(0.0, age or 0.0), MAX_AGE_SECONDS)


# Workers


def _count_workers(pools: Iterable[PoolInfo]) -> Samples:
    counts = Counter(
        (pool.runtime if pool.runtime in RUNTIMES else "unknown", pool.health) for pool in pools
    )
    # All of them, so that an alert can compare a number of 0.
    return {
        (runtime, health.value): float(counts[runtime, health])
        for runtime in RUNTIMES
        for health in PoolHealth
    }
