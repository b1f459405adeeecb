"""Jobs in any state, as their rows, for tests of administration; and plans carried out."""

from typing import Any, TypeVar

from graphile_worker._db.database import run_plan_sync
from graphile_worker._db.sync import SyncPsycopgDatabase
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.query import Plan
from tests.conftest import TestDatabase
from tests.support.sql import Sql

T = TypeVar("T")

NODE = "pool-0123456789abcdef01"

# Columns that make a job be in a state.
STATE_COLUMNS: dict[str, dict[str, str]] = {
    "stale": {"locked_at": "now() - interval '5 hours'", "locked_by": f"'{NODE}'"},
    "running": {"locked_at": "now()", "locked_by": f"'{NODE}'", "attempts": "1"},
    "failed": {"attempts": "25"},
    "waiting": {"job_queue_id": "(select id from :schema._private_job_queues limit 1)"},
    "ready": {},
    "retrying": {"attempts": "2", "run_at": "now() + interval '1 hour'"},
    "scheduled": {"run_at": "now() + interval '1 hour'"},
}


class JobTable:
    """Inserts rows into the table of jobs, and runs plans on its own connection."""

    def __init__(self, database: TestDatabase, sql: Sql) -> None:
        self.schemas = Schemas.from_names(database.schema)
        self._db = SyncPsycopgDatabase(database.dsn, self.schemas)
        self._sql = sql

    def run_plan(self, plan: Plan[T]) -> T:
        return run_plan_sync(self._db, plan)

    def add_job(self, task: str = "task", **columns: Any) -> int:
        """A job that is ready, but for the given columns, each an SQL expression; its id."""
        given = {"run_at": "now() - interval '1 minute'", **columns}
        self._sql.run(
            "insert into :schema._private_tasks (identifier) values ($1) on conflict do nothing",
            task,
        )
        names, values = ", ".join(given), ", ".join(given.values())
        found: int = self._sql.value(
            f"insert into :schema._private_jobs (task_id, {names}) "
            f"select id, {values} from :schema._private_tasks where identifier = $1 returning id",
            task,
        )
        return found

    def add_queue(self, name: str, **columns: str) -> str:
        """A named queue; an expression that is its id."""
        given = {"queue_name": f"'{name}'", **columns}
        names, values = ", ".join(given), ", ".join(given.values())
        return str(
            self._sql.value(
                f"insert into :schema._private_job_queues ({names}) values ({values}) returning id"
            )
        )

    def add_job_in_state(self, state: str, **columns: str) -> int:
        if state == "waiting" and "job_queue_id" not in columns:
            name = f"held {self._sql.value('select count(*) from :schema._private_job_queues')}"
            columns["job_queue_id"] = self.add_queue(name, locked_at="now()", locked_by="'holder'")
        return self.add_job(**{**STATE_COLUMNS[state], **columns})

    def rows(self) -> dict[int, tuple[Any, ...]]:
        """Every column of every job, by id."""
        found = self._sql.run("select id, to_jsonb(jobs) from :schema._private_jobs as jobs")
        return {row[0]: row[1:] for row in found}

    def close(self) -> None:
        self._db.close()
