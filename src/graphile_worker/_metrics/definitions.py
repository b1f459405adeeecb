"""Every metric of this package: name, type, help text and labels.

The reference page is generated from this module, and the tests compare alert rules and dashboards
with it. `WORKER_METRICS` describe one process: sum them over all processes. `QUEUE_METRICS`
describe the database, so every process reports the same values.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

PREFIX = "graphile_worker_"

# The last bucket is unlimited. Prometheus's default buckets end at 10 s, and jobs can take hours.
JOB_BUCKETS = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    *(30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0),
)

# For statements, which take milliseconds.
QUERY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

# The task label of all tasks beyond the limit of distinct values.
OTHER_LABEL = "_other"

# The label that all metrics of a worker over several shards have, besides those of its process.
SHARD_LABEL = "shard"


class MetricType(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Merge(StrEnum):
    """How the gauges of several pools or processes become one value."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"


class JobResult(StrEnum):
    """The label `outcome` of a finished job."""

    SUCCESS = "success"
    RETRY = "retry"
    FAILED = "failed"
    SNOOZED = "snoozed"
    INTERRUPTED = "interrupted"
    LOST = "lost"


class AddMode(StrEnum):
    """The label `mode` of an added job."""

    SINGLE = "single"
    BATCH = "batch"
    CRON = "cron"


class FetchResult(StrEnum):
    """The label `result` of a fetch."""

    HIT = "hit"
    EMPTY = "empty"
    ERROR = "error"


class WriteKind(StrEnum):
    """The label `kind` of a statement that writes outcomes."""

    COMPLETE = "complete"
    FAIL = "fail"
    RELEASE = "release"


class ConnectionState(StrEnum):
    """The label `state` of the database connections of a worker."""

    USED = "used"
    IDLE = "idle"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric. `name` is the full name of its samples, with `_total` for counters."""

    name: str
    type: MetricType
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    merge: Merge = Merge.SUM

    def __hash__(self) -> int:
        return hash(self.name)


def _counter(name: str, help: str, *labels: str) -> Metric:
    return Metric(f"{PREFIX}{name}_total", MetricType.COUNTER, help, labels)


def _gauge(name: str, help: str, *labels: str, merge: Merge = Merge.SUM) -> Metric:
    return Metric(PREFIX + name, MetricType.GAUGE, help, labels, merge=merge)


def _histogram(name: str, help: str, *labels: str, buckets: tuple[float, ...]) -> Metric:
    return Metric(PREFIX + name, MetricType.HISTOGRAM, help, labels, buckets)


# Jobs

JOBS_STARTED = _counter("jobs_started", "Jobs that the worker started.", "task")
JOBS_FINISHED = _counter(
    "jobs_finished", "Jobs whose outcome was written, or whose lock was lost.", "task", "outcome"
)
JOB_DURATION = _histogram(
    "job_duration_seconds", "Run time of an attempt, from its start to its end.", "task",
    buckets=JOB_BUCKETS,
)  # fmt: skip
JOB_WAIT = _histogram(
    "job_wait_seconds",
    "Time from run_at to the claim of a first attempt, by the database's clock.",
    "task",
    buckets=JOB_BUCKETS,
)
JOBS_ADDED = _counter(
    "jobs_added", "Jobs that this process added, also in transactions rolled back later.",
    "task", "mode",
)  # fmt: skip
JOBS_RECOVERED = _counter(
    "jobs_recovered", "Jobs of dead workers that this worker released.", "task"
)
JOBS_RUNNING = _gauge("jobs_running", "Jobs that run now.")
JOBS_PREFETCHED = _gauge("jobs_prefetched", "Claimed jobs that wait for a free slot.")
CONCURRENCY = _gauge("concurrency", "Jobs that can run at once.")

# The database

DATABASE_REACHABLE = _gauge(
    "database_reachable", "1 if the last fetch succeeded, otherwise 0.", merge=Merge.MIN
)
FETCHES = _counter("fetches", "Fetches of jobs.", "result")
FETCH_DURATION = _histogram(
    "fetch_duration_seconds", "Duration of a fetch that the database answered.",
    buckets=QUERY_BUCKETS,
)  # fmt: skip
WRITE_DURATION = _histogram(
    "write_duration_seconds", "Duration of a statement that writes outcomes.", "kind",
    buckets=QUERY_BUCKETS,
)  # fmt: skip
WRITE_RETRIES = _counter("write_retries", "Writes of outcomes that were retried.")
CONNECTIONS = _gauge(
    "db_connections", "Database connections for tasks, and tasks that wait for one.", "state"
)
LISTEN_CONNECTED = _gauge("listen_connected", "Processes that receive notifications of new jobs.")
LISTEN_RECONNECTS = _counter("listen_reconnects", "Lost connections for notifications.")

# Lease

HEARTBEAT_AGE = _gauge(
    "heartbeat_age_seconds", "Seconds since the last heartbeat that the database answered.",
    merge=Merge.MAX,
)  # fmt: skip
HEARTBEAT_FAILURES = _counter("heartbeat_failures", "Heartbeats that failed.")
LEASES_EXPIRED = _counter(
    "leases_expired", "Times that this worker stopped its jobs because its lease expired."
)
LEASES_LOST = _counter("leases_lost", "Times that another worker took over the jobs of this one.")
EVENT_LOOP_LAG = _gauge(
    "event_loop_lag_seconds", "Longest delay of the event loop in the last minute.",
    merge=Merge.MAX,
)  # fmt: skip

# Cron

CRON_ADDED = _counter("cron_added", "Jobs that the scheduler added.", "identifier")
CRON_LAST = _gauge(
    "cron_last_timestamp_seconds", "Time of the schedule for which the last job was added.",
    "identifier", merge=Merge.MAX,
)  # fmt: skip
CRON_CHECKED = _gauge(
    "cron_checked_timestamp_seconds", "Last minute whose scheduled jobs were added, if any.",
    merge=Merge.MAX,
)  # fmt: skip

INFO = _gauge(
    "info",
    "Always 1. Join its labels with other metrics of the process.",
    *("version", "python", "psycopg", "loop", "schema"),
    merge=Merge.MAX,
)
PROCESSES = _gauge("processes", "Worker processes that report their metrics.")

# The queue, as the database has it

QUEUE_JOBS = _gauge("queue_jobs", "Jobs in the database.", "task", "state", merge=Merge.MAX)
QUEUE_OLDEST_READY = _gauge(
    "queue_oldest_ready_seconds", "Seconds for which the oldest ready job has waited.", "task",
    merge=Merge.MAX,
)  # fmt: skip
QUEUE_RUNNABLE = _gauge(
    "queue_runnable",
    "Jobs that run or could run within 30 s. Each named queue counts once. Scale by this number.",
    merge=Merge.MAX,
)
QUEUES_LOCKED = _gauge("queues_locked", "Named queues that are locked.", merge=Merge.MAX)
STALE_LOCKS = _gauge(
    "queue_stale_locks", "Jobs that dead workers hold, or that are locked for over 4 hours.",
    merge=Merge.MAX,
)  # fmt: skip
WORKERS = _gauge(
    "workers", "Registered workers, and unregistered workers that hold locks.", "runtime", "health",
    merge=Merge.MAX,
)  # fmt: skip
LIMIT_SLOTS = _gauge(
    "limit_slots",
    "Slots of a concurrency limit: `size`, `used`, and `wanted` if a worker without any waits.",
    "limit",
    "state",
    merge=Merge.MAX,
)
TABLE_INSERTED = _counter("table_inserted", "Rows that were inserted into the table of jobs.")
TABLE_DELETED = _counter("table_deleted", "Rows that were deleted from the table of jobs.")
TABLE_DEAD_ROWS = _gauge(
    "table_dead_rows", "Dead rows in the table of jobs, as PostgreSQL estimates.", merge=Merge.MAX
)
TABLE_BYTES = _gauge("table_bytes", "Size of the table of jobs with its indexes.", merge=Merge.MAX)
OLDEST_TRANSACTION = _gauge(
    "oldest_transaction_seconds",
    "Age of the oldest transaction that blocks vacuum, if this role may see it.",
    merge=Merge.MAX,
)
NOTIFY_QUEUE_USAGE = _gauge(
    "notify_queue_ratio", "Used part of PostgreSQL's queue of notifications.", merge=Merge.MAX
)
SEQUENCE_USAGE = _gauge(
    "sequence_ratio", "Used part of the most used sequence of the schema.", merge=Merge.MAX
)
SNAPSHOT_AGE = _gauge(
    "snapshot_age_seconds", "Age of the snapshot that these metrics show.", merge=Merge.MAX
)
SNAPSHOT_DURATION = _gauge(
    "snapshot_duration_seconds", "Database time of that snapshot.", merge=Merge.MAX
)
SNAPSHOT_ERRORS = _counter("snapshot_errors", "Looks at the database that failed.")
SNAPSHOT_SHARED = _gauge(
    "snapshot_shared",
    "1 if all processes share that snapshot, 0 if this role may not write it.",
    merge=Merge.MAX,
)
QUEUE_INFO = _gauge(
    "queue_info", "Always 1. Join its label with other metrics of the queue.", "schema",
    merge=Merge.MAX,
)  # fmt: skip
QUEUE_REACHABLE = _gauge(
    "queue_reachable", "1 if the last look at the database succeeded, otherwise 0.",
    merge=Merge.MIN,
)  # fmt: skip

WORKER_METRICS: tuple[Metric, ...] = (
    *(JOBS_STARTED, JOBS_FINISHED, JOB_DURATION, JOB_WAIT, JOBS_ADDED, JOBS_RECOVERED),
    *(JOBS_RUNNING, JOBS_PREFETCHED, CONCURRENCY),
    *(DATABASE_REACHABLE, FETCHES, FETCH_DURATION, WRITE_DURATION, WRITE_RETRIES),
    *(CONNECTIONS, LISTEN_CONNECTED, LISTEN_RECONNECTS),
    *(HEARTBEAT_AGE, HEARTBEAT_FAILURES, LEASES_EXPIRED, LEASES_LOST, EVENT_LOOP_LAG),
    *(CRON_ADDED, CRON_LAST, CRON_CHECKED, INFO, PROCESSES),
)
QUEUE_METRICS: tuple[Metric, ...] = (
    *(QUEUE_OLDEST_READY, QUEUE_RUNNABLE, QUEUE_JOBS, QUEUES_LOCKED, STALE_LOCKS, WORKERS),
    LIMIT_SLOTS,
    *(TABLE_INSERTED, TABLE_DELETED, TABLE_DEAD_ROWS, TABLE_BYTES),
    *(OLDEST_TRANSACTION, NOTIFY_QUEUE_USAGE, SEQUENCE_USAGE),
    *(QUEUE_REACHABLE, SNAPSHOT_AGE, SNAPSHOT_DURATION, SNAPSHOT_ERRORS, SNAPSHOT_SHARED),
    QUEUE_INFO,
)


# The labels and their values, for the reference page.
LABELS: Mapping[str, str] = {
    "task": f"identifier of the task, or `{OTHER_LABEL}` beyond the limit",
    "outcome": "`success`; `retry`: failed, with another attempt; `failed`: permanently failed; "
    "`snoozed`; `interrupted`: released without counting the attempt, for example by a shutdown; "
    "`lost`: another worker took over the job",
    "mode": "`single`: `add_job` or `enqueue`; `batch`: `add_jobs`; `cron`: the scheduler",
    "result": "`hit`, `empty` or `error`",
    "kind": "`complete`, `fail` or `release`",
    "identifier": "identifier of the cron item",
    "runtime": "`python`, `node`, `rust` or `unknown`",
    "health": "`alive`, `dead` or `unknown`",
    "state": "of jobs: a state of the job lifecycle; of connections: `used`, `idle` or `waiting`; "
    "of slots: `size`, `used` or `wanted`",
    "limit": "name of the limit, of the first 100 limits",
    "version": "version of this package",
    "python": "version of Python",
    "psycopg": "version of psycopg",
    "loop": "`asyncio` or `uvloop`",
    "schema": "schema of the queue",
}


def index_metrics(metrics: Iterable[Metric]) -> dict[str, Metric]:
    return {metric.name: metric for metric in metrics}


METRICS_BY_NAME = index_metrics((*WORKER_METRICS, *QUEUE_METRICS))
