"""The dashboard for PostgreSQL: the queue as it is now, for those without Prometheus.

Each panel is a file in `sql/`. The queries need the privileges of the role queue_reader.
"""

from pathlib import Path

from tools.grafana.dashboard import POSTGRES, Dashboard, Panel, PanelType, Query, Row, Variable

FOLDER = Path(__file__).parent / "sql"


def load(name: str) -> tuple[Query, ...]:
    return (Query((FOLDER / f"{name}.sql").read_text(encoding="utf-8").strip()),)


def stat(
    title: str, help: str, name: str, unit: str = "short", thresholds: tuple[float, ...] = ()
) -> Panel:
    return Panel(
        title=title,
        help=help,
        queries=load(name),
        unit=unit,
        type=PanelType.STAT,
        width=6,
        height=4,
        thresholds=thresholds,
    )


def table(title: str, help: str, name: str, **column_units: str) -> Panel:
    return Panel(
        title=title,
        help=help,
        queries=load(name),
        type=PanelType.TABLE,
        width=12,
        column_units=column_units,
    )


FLOW = Row(
    "Flow",
    (
        stat(
            "Oldest ready job",
            "Time for which the oldest ready job has waited. If it grows, workers are too few, "
            "stopped, or lack a task.",
            "oldest_ready",
            "s",
            (60, 300),
        ),
        stat(
            "Runnable jobs",
            "Jobs that run or could run within 30 s. Each named queue counts once.",
            "runnable",
        ),
        stat(
            "Workers",
            "Python workers that send heartbeats. Other workers are in the list of lock holders.",
            "alive_workers",
        ),
        stat("Failed jobs", "Jobs without attempts left.", "failed", "short", (1,)),
        table(
            "Jobs by task",
            "Jobs of each task and state, and the wait of its oldest ready job.",
            "jobs_by_task",
            oldest="s",
        ),
        Panel(
            title="Jobs by due time",
            help="Jobs of the last 12 and the next 24 hours. Completed jobs are deleted.",
            queries=load("jobs_by_due_time"),
            type=PanelType.BARS,
            width=12,
        ),
    ),
)

JOBS = Row(
    "Jobs",
    (
        table(
            "Running jobs",
            "The longest runs. A job counts as running while a worker has locked it.",
            "running_jobs",
            running="s",
        ),
        table(
            "Errors",
            "Last errors of jobs that failed or wait for a retry, by task.",
            "errors",
        ),
        table(
            "Named queues", "Locked named queues, oldest locks first.", "locked_queues", locked="s"
        ),
        table(
            "Scheduled tasks",
            "Cron items, and the time since their last run.",
            "cron",
            age="s",
        ),
    ),
)

WORKERS = Row(
    "Workers",
    (
        table(
            "Python workers",
            "Registered workers. Without a heartbeat within the lease, other workers take over.",
            "workers",
            heartbeat="s",
            lease="s",
        ),
        table(
            "Lock holders",
            "Workers of any runtime that hold locks, for example pool-… of Node.",
            "lock_holders",
            oldest="s",
        ),
    ),
)

DATABASE = Row(
    "Database",
    (
        stat("Size of the table of jobs", "With its indexes.", "table_bytes", "bytes"),
        stat(
            "Dead rows",
            "Rows of the table of jobs that vacuum has not removed.",
            "dead_rows",
            "short",
            (100_000,),
        ),
        stat(
            "Oldest transaction",
            "Sessions of other roles are visible to members of pg_read_all_stats.",
            "oldest_transaction",
            "s",
            (300, 900),
        ),
        stat(
            "Notification queue",
            "Used part. At 100 %, no program can add jobs.",
            "notify_queue",
            "percentunit",
            (0.1, 0.5),
        ),
    ),
)

DASHBOARD = Dashboard(
    uid="graphile-worker-postgres",
    title="Graphile Worker (PostgreSQL)",
    help="The queue as it is now, read from PostgreSQL. Works with the role queue_reader.",
    source=POSTGRES,
    rows=(FLOW, JOBS, WORKERS, DATABASE),
    variables=(
        Variable(
            name="schema",
            label="Schema",
            query=(FOLDER / "schemas.sql").read_text(encoding="utf-8").strip(),
            is_multiple=False,
        ),
    ),
    # Some panels read all jobs.
    refresh="1m",
)
