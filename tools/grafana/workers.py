"""The dashboard for Prometheus: workers of any runtime, their jobs and their database."""

from graphile_worker._metrics.definitions import PREFIX, QUEUE_METRICS
from tools.grafana.dashboard import (
    PROMETHEUS,
    Annotation,
    Dashboard,
    Panel,
    PanelType,
    Query,
    Row,
    Variable,
)

# Each target has a metric that names its schema.
OF_SCHEMA = 'and on (job, instance) graphile_worker_{}info{{schema=~"$schema"}}'
QUEUE_NAMES = {metric.name for metric in QUEUE_METRICS}

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def gauge(name: str, *matchers: str) -> str:
    """Return the gauge of the selected schemas."""
    return f"{_select(name, *matchers)} {_of_schema(name)}"


def rate(name: str, *matchers: str) -> str:
    """Return the increase per second of a counter, of the selected schemas."""
    return f"rate({_select(name, *matchers)}[$__rate_interval]) {_of_schema(name)}"


def increase(name: str) -> str:
    """Return the increase of a counter in 5 minutes, of the selected schemas."""
    return f"increase({_select(name)}[5m]) {_of_schema(name)}"


def queue(name: str, *labels: str, matchers: tuple[str, ...] = ()) -> str:
    """Return a value of the database. Several targets report it, so the largest counts."""
    return f"max by ({', '.join(labels)}) ({gauge(name, *matchers)})"


def quantile(fraction: float, name: str, *matchers: str, by: str = "") -> str:
    labels = ", ".join(("le", by)) if by else "le"
    return (
        f"histogram_quantile({fraction}, sum by ({labels}) ({rate(f'{name}_bucket', *matchers)}))"
    )


def _select(name: str, *matchers: str) -> str:
    condition = f"{{{', '.join(matchers)}}}" if matchers else ""
    return f"{PREFIX}{name}{condition}"


def _of_schema(name: str) -> str:
    return OF_SCHEMA.format("queue_" if PREFIX + name in QUEUE_NAMES else "")


TASK = 'task=~"$task"'
DUE = 'state=~"ready|waiting"'
NOT_DEAD = 'health!="dead"'
# Where a target reports the queue, and no job has the label.
ZERO = f"0 * max({gauge('queue_reachable')})"
DELETED = f"max({rate('table_deleted_total')})"
INSERTED = f"max({rate('table_inserted_total')})"
DUE_JOBS = f"sum({queue('queue_jobs', 'task', matchers=(DUE,))})"
DRAIN_TIME = f"{DUE_JOBS} / ({DELETED} > 0)"
OLDEST_READY = queue("queue_oldest_ready_seconds", "task", matchers=(TASK,))
RUNNABLE = f"max({gauge('queue_runnable')})"
CONCURRENCY = f"sum({gauge('concurrency')})"
RUNNING = f"sum({gauge('jobs_running')})"


def stat(
    title: str, help: str, expression: str, unit: str = "short", thresholds: tuple[float, ...] = ()
) -> Panel:
    return Panel(
        title=title,
        help=help,
        queries=(Query(expression),),
        unit=unit,
        type=PanelType.STAT,
        width=6,
        height=4,
        thresholds=thresholds,
    )


def quantiles(title: str, help: str, name: str) -> Panel:
    return Panel(
        title=title,
        help=help,
        queries=tuple(
            Query(quantile(each, name, TASK), label) for label, each in QUANTILES.items()
        ),
        unit="s",
    )


FLOW = Row(
    "Flow",
    (
        stat(
            "Oldest ready job",
            "Time for which the oldest ready job has waited. If it grows, workers are too few, "
            "stopped, or lack a task.",
            f"max({OLDEST_READY}) or {ZERO}",
            "s",
            (60, 300),
        ),
        stat(
            "Runnable jobs",
            "Jobs that run or could run within 30 s. Each named queue counts once.",
            RUNNABLE,
        ),
        stat(
            "Workers",
            "Workers that send heartbeats, and workers without heartbeats that hold locks.",
            f"sum({queue('workers', 'runtime', 'health', matchers=(NOT_DEAD,))}) or {ZERO}",
        ),
        stat(
            "Time to drain",
            "Jobs that are due, divided by completed jobs per second. Empty if none are completed.",
            DRAIN_TIME,
            "s",
            (600, 3600),
        ),
        Panel(
            title="Oldest ready job by task",
            help="Time for which the oldest ready job of each task has waited.",
            queries=(Query(OLDEST_READY, "{{task}}"),),
            unit="s",
            width=12,
            thresholds=(60, 300),
        ),
        Panel(
            title="Jobs by state",
            help="Jobs in the database. Completed jobs are deleted.",
            queries=(
                Query(
                    f"sum by (state) ({queue('queue_jobs', 'task', 'state', matchers=(TASK,))})",
                    "{{state}}",
                ),
            ),
            width=12,
            is_stacked=True,
        ),
        Panel(
            title="Runnable jobs and concurrency",
            help="While more jobs are runnable than can run at once, jobs wait.",
            queries=(
                Query(RUNNABLE, "runnable"),
                Query(CONCURRENCY, "concurrency of Python workers"),
            ),
        ),
        Panel(
            title="Rows added and completed",
            help="Inserted and deleted rows per second, of programs and workers of any runtime.",
            queries=(Query(INSERTED, "added"), Query(DELETED, "deleted")),
            unit="ops",
        ),
        Panel(
            title="Time to drain",
            help="Jobs that are due, divided by completed jobs per second.",
            queries=(Query(DRAIN_TIME, "time to drain"),),
            unit="s",
        ),
    ),
)

JOBS = Row(
    "Jobs of Python workers",
    (
        Panel(
            title="Jobs started and added",
            help="Jobs per second. Added jobs are those of programs that export metrics.",
            queries=(
                Query(f"sum({rate('jobs_started_total', TASK)})", "started"),
                Query(f"sum by (mode) ({rate('jobs_added_total', TASK)})", "added: {{mode}}"),
            ),
            unit="ops",
        ),
        Panel(
            title="Jobs finished by outcome",
            help="Runs per second. `retry` and `failed` are errors, `lost` is a lost lock.",
            queries=(
                Query(f"sum by (outcome) ({rate('jobs_finished_total', TASK)})", "{{outcome}}"),
            ),
            unit="ops",
            is_stacked=True,
        ),
        Panel(
            title="Error ratio by task",
            help="Runs that end with an error, of all runs. The ten highest.",
            queries=(
                Query(
                    "topk(10, sum by (task) ("
                    + rate("jobs_finished_total", TASK, 'outcome=~"retry|failed"')
                    + ") / sum by (task) ("
                    + rate("jobs_finished_total", TASK, 'outcome=~"success|retry|failed"')
                    + "))",
                    "{{task}}",
                ),
            ),
            unit="percentunit",
            thresholds=(0.05,),
        ),
        quantiles(
            "Duration of jobs",
            "Run time, from the start of a job to its end.",
            "job_duration_seconds",
        ),
        quantiles(
            "Wait for a start",
            "Time from run_at to the start of a first attempt.",
            "job_wait_seconds",
        ),
        Panel(
            title="Duration by task, p95",
            help="The ten tasks with the longest runs.",
            queries=(
                Query(
                    f"topk(10, {quantile(0.95, 'job_duration_seconds', TASK, by='task')})",
                    "{{task}}",
                ),
            ),
            unit="s",
        ),
        Panel(
            title="Top 10 tasks by jobs",
            help="Jobs per second.",
            queries=(
                Query(f"topk(10, sum by (task) ({rate('jobs_started_total', TASK)}))", "{{task}}"),
            ),
            unit="ops",
            width=12,
        ),
        Panel(
            title="Top 10 tasks by run time",
            help="Slots that a task uses on average: seconds of run time per second.",
            queries=(
                Query(
                    f"topk(10, sum by (task) ({rate('job_duration_seconds_sum', TASK)}))",
                    "{{task}}",
                ),
            ),
            width=12,
        ),
        Panel(
            title="Slots of limits",
            help="Slots of concurrency limits: all of them, and those that workers rent.",
            queries=(Query(queue("limit_slots", "limit", "state"), "{{limit}} {{state}}"),),
            width=24,
        ),
    ),
)

WORKERS = Row(
    "Workers",
    (
        Panel(
            title="Workers by runtime and health",
            help="Workers for Node send no heartbeats. While they hold locks, they are unknown.",
            queries=(
                Query(f"{queue('workers', 'runtime', 'health')} > 0", "{{runtime}}: {{health}}"),
            ),
            is_stacked=True,
        ),
        Panel(
            title="Running jobs of concurrency",
            help="If all slots are used while jobs wait, add workers.",
            queries=(
                Query(RUNNING, "running"),
                Query(f"sum({gauge('jobs_prefetched')})", "prefetched"),
                Query(CONCURRENCY, "concurrency"),
            ),
        ),
        Panel(
            title="Event loop lag",
            help="Longest delay in the last minute. Blocking calls in async tasks cause it.",
            queries=(
                Query(f"max by (instance) ({gauge('event_loop_lag_seconds')})", "{{instance}}"),
            ),
            unit="s",
            thresholds=(1,),
        ),
        Panel(
            title="Heartbeat age",
            help="Seconds since the last heartbeat. After the lease duration, a worker is dead.",
            queries=(
                Query(f"max by (instance) ({gauge('heartbeat_age_seconds')})", "{{instance}}"),
            ),
            unit="s",
            thresholds=(15, 30),
        ),
        Panel(
            title="Listening processes",
            help="Processes that receive notifications. Others find new jobs by polling.",
            queries=(
                Query(f"sum({gauge('listen_connected')})", "listening"),
                Query(f"sum({gauge('processes')})", "processes"),
                Query(f"sum({rate('listen_reconnects_total')})", "lost connections per second"),
            ),
        ),
        Panel(
            title="Recoveries",
            help="Jobs of dead workers that were released, and leases that expired, in 5 minutes.",
            queries=(
                Query(f"sum({increase('jobs_recovered_total')})", "jobs"),
                Query(
                    f"sum({increase('leases_expired_total')})",
                    "expired leases",
                ),
                Query(
                    f"sum({increase('leases_lost_total')})",
                    "leases that other workers took over",
                ),
                Query(
                    f"sum({increase('heartbeat_failures_total')})",
                    "failed heartbeats",
                ),
            ),
        ),
        Panel(
            title="Database connections of tasks",
            help="If tasks wait for connections, raise --max-pool-size.",
            queries=(Query(f"sum by (state) ({gauge('db_connections')})", "{{state}}"),),
            is_stacked=True,
        ),
        Panel(
            title="Versions",
            help="Workers by version of this package, and of Python.",
            queries=(
                Query(
                    'count by (version, python) (graphile_worker_info{schema=~"$schema"})',
                    "{{version}} on Python {{python}}",
                ),
            ),
            is_stacked=True,
        ),
        Panel(
            title="Reachable database",
            help="1 if the last fetch of all workers succeeded.",
            queries=(
                Query(f"min({gauge('database_reachable')})", "workers"),
                Query(f"min({gauge('queue_reachable')})", "exporter"),
            ),
        ),
    ),
)

DATABASE = Row(
    "Database",
    (
        Panel(
            title="Fetch duration",
            help="Statements that claim jobs.",
            queries=tuple(
                Query(quantile(each, "fetch_duration_seconds"), label)
                for label, each in QUANTILES.items()
            ),
            unit="s",
        ),
        Panel(
            title="Write duration, p95",
            help="Statements that write outcomes.",
            queries=(Query(quantile(0.95, "write_duration_seconds", by="kind"), "{{kind}}"),),
            unit="s",
        ),
        Panel(
            title="Fetches by result",
            help="Fetches per second. Many empty fetches are normal with many idle workers.",
            queries=(
                Query(f"sum by (result) ({rate('fetches_total')})", "{{result}}"),
                Query(f"sum({rate('write_retries_total')})", "retried writes"),
            ),
            unit="ops",
        ),
        Panel(
            title="Dead rows",
            help="Rows of the table of jobs that vacuum has not removed. They slow down fetches.",
            queries=(Query(f"max({gauge('table_dead_rows')})", "dead rows"),),
            thresholds=(100_000,),
        ),
        Panel(
            title="Size of the table of jobs",
            help="With its indexes.",
            queries=(Query(f"max({gauge('table_bytes')})", "size"),),
            unit="bytes",
        ),
        Panel(
            title="Oldest transaction",
            help="Age of the oldest transaction that blocks vacuum, of those that are visible.",
            queries=(Query(f"max({gauge('oldest_transaction_seconds')})", "age"),),
            unit="s",
            thresholds=(300, 900),
        ),
        Panel(
            title="Notification queue and sequences",
            help="Used parts. At 100 %, no program can add jobs, or new names of tasks and queues.",
            queries=(
                Query(f"max({gauge('notify_queue_ratio')})", "notification queue"),
                Query(f"max({gauge('sequence_ratio')})", "sequences"),
            ),
            unit="percentunit",
            thresholds=(0.3, 0.5),
        ),
        Panel(
            title="Locks",
            help="Stale locks belong to dead workers, or are older than four hours.",
            queries=(
                Query(f"max({gauge('queues_locked')})", "locked named queues"),
                Query(f"max({gauge('queue_stale_locks')})", "jobs with a stale lock"),
            ),
        ),
        Panel(
            title="Snapshot of these metrics",
            help="Age of the values of the queue, and the database time that they cost.",
            queries=(
                Query(f"max({gauge('snapshot_age_seconds')})", "age"),
                Query(f"max({gauge('snapshot_duration_seconds')})", "duration"),
            ),
            unit="s",
            thresholds=(120,),
        ),
    ),
)

CRON = Row(
    "Scheduled tasks",
    (
        stat(
            "Scheduler",
            "Time since the last minute whose jobs were added.",
            f"time() - max({gauge('cron_checked_timestamp_seconds')})",
            "s",
            (120, 300),
        ),
        Panel(
            title="Last run by item",
            help="Time since the schedule for which the last job was added.",
            queries=(
                Query(f"time() - max by (identifier) ({gauge('cron_last_timestamp_seconds')})"),
            ),
            type=PanelType.TABLE,
            width=9,
            column_units={"Value": "s"},
        ),
        Panel(
            title="Scheduled jobs",
            help="Jobs that the scheduler added in 5 minutes.",
            queries=(
                Query(
                    f"sum by (identifier) ({increase('cron_added_total')})",
                    "{{identifier}}",
                ),
            ),
            width=9,
        ),
    ),
)

VERSION = 'count by (version) (graphile_worker_info{schema=~"$schema"})'

DASHBOARD = Dashboard(
    uid="graphile-worker",
    title="Graphile Worker",
    help="Workers, jobs and their database, from Prometheus.",
    source=PROMETHEUS,
    rows=(FLOW, JOBS, WORKERS, DATABASE, CRON),
    variables=(
        Variable(
            name="schema",
            label="Schema",
            query='label_values({__name__=~"graphile_worker_(queue_)?info"}, schema)',
        ),
        Variable(
            name="task",
            label="Task",
            query=(
                'label_values({__name__=~"graphile_worker_(queue_jobs|jobs_started_total)"}, task)'
            ),
        ),
    ),
    annotations=(
        Annotation(
            title="New version",
            query=f"{VERSION} unless {VERSION.replace('})', '} offset 5m)')}",
            text="graphile-worker {{version}}",
        ),
    ),
)
