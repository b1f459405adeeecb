-- Set run_at ($2, or $3 microseconds from now), priority $4, attempts $5 and max_attempts $6, where
-- given, of jobs $1, except jobs that a worker has locked.
select
  jobs.id,
  tasks.identifier,
  job_queues.queue_name,
  :job_columns
from :schema.reschedule_jobs(
  job_ids => $1::bigint[],
  run_at => coalesce(
    $2::text::timestamptz,
    -- An interval times a number uses floating point, which is exact for small numbers.
    pg_catalog.now()
      + ($3::bigint / 3600000000)::float8 * interval '1 hour'
      + ($3::bigint % 3600000000)::float8 * interval '1 microsecond'
  ),
  priority => $4::int,
  attempts => $5::int,
  max_attempts => $6::int
) as jobs
left join :schema._private_tasks as tasks on tasks.id = jobs.task_id
left join :schema._private_job_queues as job_queues on job_queues.id = jobs.job_queue_id
order by jobs.id;
