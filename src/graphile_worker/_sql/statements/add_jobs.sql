-- Add the jobs of the JSON array $1, with one call for each way to treat keys. Rows are in no
-- order. A key whose job another session had locked has no row. If $2 rows are expected and there
-- are fewer, the statement fails with a division by zero.
with calls as (
  select
    spec.preserve_run_at,
    pg_catalog.array_agg(
      cast(
        row(
          spec.identifier,
          spec.payload::json,
          spec.queue_name,
          coalesce(
            spec.run_at,
            -- An interval times a number uses floating point, exact for small numbers.
            pg_catalog.now()
              + (spec.delay / 3600000000)::float8 * interval '1 hour'
              + (spec.delay % 3600000000)::float8 * interval '1 microsecond'
          ),
          spec.max_attempts,
          spec.job_key,
          spec.priority,
          spec.flags
        ) as :schema.job_spec
      )
      -- Keys in one order in every session: opposite orders would deadlock.
      order by spec.job_key nulls first, spec.position
    ) as specs
  from rows from (
    pg_catalog.json_to_recordset($1::text::json) as (
      identifier text,
      payload text,
      queue_name text,
      run_at timestamptz,
      delay bigint,
      max_attempts smallint,
      job_key text,
      priority smallint,
      flags text[],
      preserve_run_at boolean
    )
  ) with ordinality as spec (
    identifier,
    payload,
    queue_name,
    run_at,
    delay,
    max_attempts,
    job_key,
    priority,
    flags,
    preserve_run_at,
    position
  )
  group by spec.preserve_run_at
), added as (
  select :stored_columns
  from calls
  cross join lateral :schema.add_jobs(calls.specs, calls.preserve_run_at) as jobs
)
select
  jobs.id,
  tasks.identifier,
  job_queues.queue_name,
  :job_columns,
  jobs.job_queue_id,
  jobs.task_id,
  extract(epoch from pg_catalog.now())::text
from added as jobs
left join :schema._private_tasks as tasks on tasks.id = jobs.task_id
left join :schema._private_job_queues as job_queues on job_queues.id = jobs.job_queue_id
where 1 / case
  when $2::int is null then 1
  when (select pg_catalog.count(*) from added) = $2::int then 1
  else 0
end = 1;
