-- Run after every migration, as the owner of the schemas. Idempotent.
revoke execute on all functions in schema graphile_worker from public;
grant usage on schema graphile_worker to queue_worker, queue_reader, queue_cleaner, queue_api;
grant usage on schema graphile_worker_ext to queue_worker, queue_reader, queue_cleaner;
grant select on graphile_worker.migrations to queue_worker, queue_reader, queue_cleaner;
grant select on graphile_worker_ext.migrations to queue_worker, queue_reader;

-- Metrics report how much of the sequences of ids is used.
grant select on all sequences in schema graphile_worker to queue_worker, queue_reader;

-- Workers claim, add and complete jobs, and recover those of dead workers.
grant select, insert, update, delete on graphile_worker._private_jobs to queue_worker;
grant select, insert, update on graphile_worker._private_job_queues to queue_worker;
grant select, insert on graphile_worker._private_tasks to queue_worker;
grant select, insert, update on graphile_worker._private_known_crontabs to queue_worker;
grant select on graphile_worker.jobs to queue_worker;
grant execute on all functions in schema graphile_worker to queue_worker;
grant execute on function graphile_worker_ext.rotate_history to queue_worker, queue_cleaner;
grant select, insert, update, delete
  on graphile_worker_ext.pools, graphile_worker_ext.recoveries to queue_worker;
grant select, update on graphile_worker_ext.turns to queue_worker;
grant select, insert, update on graphile_worker_ext.samples to queue_worker;

-- Workers keep outcomes and attempts, and empty slots of the history. They report progress.
grant select, update on graphile_worker_ext.history to queue_worker;
grant select, insert on graphile_worker_ext.outcomes, graphile_worker_ext.attempts to queue_worker;
grant select, insert, update, delete on graphile_worker_ext.progress to queue_worker;

-- Workers obey and end pauses. People pause and resume with this role.
grant select, insert, update, delete on graphile_worker_ext.pauses to queue_worker;

-- Workers delete expired unique keys. Tasks add jobs with unique keys.
grant select, insert, update, delete on graphile_worker_ext.unique_keys to queue_worker;
grant execute
  on function graphile_worker_ext.add_unique_job, graphile_worker_ext.add_unique_jobs
  to queue_worker;

-- Workers register limits of tasks, rent slots and take tokens. People change limits with this role.
grant select, insert, update
  on graphile_worker_ext.limits, graphile_worker_ext.slots, graphile_worker_ext.rates
  to queue_worker;

-- Roles that change jobs add entries to the audit. They set neither its time nor its role, and no
-- role but the owner changes or deletes entries.
grant insert (actor, action, filter, job_ids, count, note)
  on graphile_worker_ext.audit to queue_worker, queue_cleaner;
grant select on graphile_worker_ext.audit to queue_worker, queue_reader;

-- Readers see all columns except payloads and results.
grant select on graphile_worker.jobs to queue_reader;
grant select (
  id, job_queue_id, task_id, priority, run_at, attempts, max_attempts, last_error, created_at,
  updated_at, key, locked_at, locked_by, revision, flags, is_available
) on graphile_worker._private_jobs to queue_reader;
grant select
  on graphile_worker._private_job_queues,
    graphile_worker._private_tasks,
    graphile_worker._private_known_crontabs
  to queue_reader;
grant select
  on graphile_worker_ext.pools, graphile_worker_ext.recoveries, graphile_worker_ext.samples,
    graphile_worker_ext.pauses, graphile_worker_ext.limits, graphile_worker_ext.slots,
    graphile_worker_ext.rates, graphile_worker_ext.unique_keys
  to queue_reader;
grant select
  on graphile_worker_ext.history, graphile_worker_ext.attempts, graphile_worker_ext.progress
  to queue_reader;
grant select (
  job_id, created_at, run_at, started_at, finished_at, expires_at, slot, succeeded, has_result,
  attempts, task_identifier, pool_id, priority, error, error_class
) on graphile_worker_ext.outcomes to queue_reader;

-- The cleaner deletes permanently failed jobs, names of tasks and queues, and old outcomes.
grant select (id, job_queue_id, task_id, attempts, max_attempts, locked_at), delete
  on graphile_worker._private_jobs to queue_cleaner;
grant select, delete
  on graphile_worker._private_job_queues, graphile_worker._private_tasks to queue_cleaner;

grant select, update on graphile_worker_ext.history to queue_cleaner;
grant select (ctid, job_id, task_identifier, succeeded, finished_at, expires_at, slot), delete
  on graphile_worker_ext.outcomes to queue_cleaner;
grant select (ctid, job_id, started_at, duration, expires_at, slot), delete
  on graphile_worker_ext.attempts to queue_cleaner;

-- The slots of the history are partitions, and each is emptied as a table.
do $do$
declare
  slot regclass;
begin
  for slot in
    select inhrelid
    from pg_catalog.pg_inherits
    where inhparent in (
      'graphile_worker_ext.outcomes'::regclass,
      'graphile_worker_ext.attempts'::regclass
    )
  loop
    execute pg_catalog.format('grant truncate on %s to queue_worker, queue_cleaner', slot);
  end loop;
end;
$do$;

-- Privileges of add_job, for the function that adds jobs on behalf of enqueuers.
grant select, insert, update on graphile_worker._private_jobs to queue_api;
grant select, insert
  on graphile_worker._private_job_queues, graphile_worker._private_tasks to queue_api;
grant execute on function graphile_worker.add_job, graphile_worker.add_jobs to queue_api;
grant usage on schema graphile_worker_ext to queue_api;
grant select, insert, update on graphile_worker_ext.unique_keys to queue_api;
grant execute
  on function graphile_worker_ext.add_unique_job, graphile_worker_ext.add_unique_jobs
  to queue_api;

-- Policies: which rows each role can use. Existing policies stay, because without them, even for a
-- moment, workers would see no jobs.
do $do$
declare
  wanted record;
begin
  for wanted in
    select *
    from (
      values
        ('queue_worker', 'all', 'graphile_worker._private_jobs'::regclass, 'true'),
        ('queue_worker', 'all', 'graphile_worker._private_job_queues', 'true'),
        ('queue_worker', 'all', 'graphile_worker._private_tasks', 'true'),
        ('queue_worker', 'all', 'graphile_worker._private_known_crontabs', 'true'),
        ('queue_reader', 'select', 'graphile_worker._private_jobs', 'true'),
        ('queue_reader', 'select', 'graphile_worker._private_job_queues', 'true'),
        ('queue_reader', 'select', 'graphile_worker._private_tasks', 'true'),
        ('queue_reader', 'select', 'graphile_worker._private_known_crontabs', 'true'),
        ('queue_cleaner', 'select', 'graphile_worker._private_jobs', 'true'),
        ('queue_cleaner', 'delete', 'graphile_worker._private_jobs',
          'attempts >= max_attempts and locked_at is null'),
        ('queue_cleaner', 'all', 'graphile_worker._private_job_queues', 'true'),
        ('queue_cleaner', 'all', 'graphile_worker._private_tasks', 'true'),
        ('queue_api', 'all', 'graphile_worker._private_jobs', 'true'),
        ('queue_api', 'all', 'graphile_worker._private_job_queues', 'true'),
        ('queue_api', 'all', 'graphile_worker._private_tasks', 'true')
    ) as policies (role, command, of_table, condition)
    where not exists (
      select from pg_catalog.pg_policy
      where polrelid = of_table::oid
        and polname = role || '_' || command
    )
  loop
    execute pg_catalog.format(
      'create policy %I on %s for %s to %I using (%s)',
      wanted.role || '_' || wanted.command,
      wanted.of_table,
      wanted.command,
      wanted.role,
      wanted.condition
    );
  end loop;
end;
$do$;
