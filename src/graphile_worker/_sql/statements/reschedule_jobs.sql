-- Give jobs $1 a new time ($2, or now plus $3 microseconds), priority $4, attempts $5 and maximum $6
-- where given, but for those that a worker holds.
select
  jobs.id,
  tasks.identifier,
  job_queues.queue_name,
  :job_columns
from :schema.reschedule_jobs(
  job_ids => $1::bigint[],
  run_at => coalesce(
    $2::text::timestamptz,
    -- An interval times a number goes through floating point: small enough numbers are exact.
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
