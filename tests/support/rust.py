"""A fake of the Rust worker's installer, whose levels 19 and 20 differ from those of Node."""

from tests.support.node import node_install
from tests.support.sql import Sql

# Up to level 18 both projects leave the same objects. From there on nothing is entered as breaking.
# The real level 19 also replaces the functions that add jobs, under the same signatures: the
# stand-in keeps those of level 18.
LEVEL_19 = ("insert into :schema.migrations (id, breaking) values (19, false)",)

LEVEL_20 = (
    "insert into :schema.migrations (id, breaking) values (20, false)",
    """
    create table :schema._private_workers (
      id text primary key,
      last_heartbeat_at timestamptz not null,
      started_at timestamptz not null default now(),
      metadata jsonb
    )
    """,
    """
    create index _private_workers_last_heartbeat_at_idx
    on :schema._private_workers (last_heartbeat_at)
    """,
    """
    create function :schema.worker_heartbeat(worker_id text, metadata json default null)
    returns void
    language sql
    as $rust$
      insert into :schema._private_workers as workers (id, last_heartbeat_at, metadata)
      values (worker_heartbeat.worker_id, now(), worker_heartbeat.metadata::jsonb)
      on conflict (id) do update
      set last_heartbeat_at = now(),
          metadata = coalesce(excluded.metadata, workers.metadata);
    $rust$
    """,
    """
    create function :schema.worker_deregister(worker_id text)
    returns void
    language sql
    as $rust$
      delete from :schema._private_workers where id = worker_deregister.worker_id;
    $rust$
    """,
    """
    create function :schema.list_stale_workers(stale_threshold interval)
    returns table (worker_id text)
    language sql
    as $rust$
      select workers.id
      from :schema._private_workers as workers
      where workers.last_heartbeat_at < now() - list_stale_workers.stale_threshold;
    $rust$
    """,
    """
    create function :schema.list_orphan_locked_workers(stale_threshold interval)
    returns table (worker_id text)
    language sql
    as $rust$
      select locks.locked_by
      from (
        select locked_by, locked_at from :schema._private_jobs
        union
        select locked_by, locked_at from :schema._private_job_queues
      ) as locks
      where locks.locked_at < now() - list_orphan_locked_workers.stale_threshold
        and not exists (
          select from :schema._private_workers as workers where workers.id = locks.locked_by
        )
      group by locks.locked_by;
    $rust$
    """,
    """
    create function :schema.recover_dead_worker_jobs(
      worker_ids text[],
      crash_retry_delay interval default '0 seconds'
    )
    returns integer
    language plpgsql
    as $rust$
    declare
      recovered integer;
    begin
      update :schema._private_jobs as jobs
      set locked_at = null,
          locked_by = null,
          attempts = greatest(0, jobs.attempts - 1),
          run_at = greatest(jobs.run_at, now() + crash_retry_delay),
          last_error = 'Job recovered after worker interruption',
          updated_at = now()
      where jobs.locked_by = any (worker_ids);
      get diagnostics recovered = row_count;

      update :schema._private_job_queues as job_queues
      set locked_at = null,
          locked_by = null
      where job_queues.locked_by = any (worker_ids);

      return recovered;
    end;
    $rust$
    """,
    """
    create function :schema.delete_stale_workers(worker_ids text[])
    returns void
    language sql
    as $rust$
      delete from :schema._private_workers where id = any (delete_stale_workers.worker_ids);
    $rust$
    """,
)


def rust_install(url: str, dsn: str, schema: str, *, level: int = 20) -> None:
    """Bring an empty database to where the Rust worker leaves it at level 19 or 20."""
    node_install(url, version="0.16", schema=schema)
    sql = Sql(dsn, schema)
    try:
        for statement in LEVEL_19 + (LEVEL_20 if level == 20 else ()):
            sql.run(statement)
    finally:
        sql.close()
