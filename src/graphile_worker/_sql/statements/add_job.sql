-- Add job $1 with payload $2, to run at $4 or $5 microseconds from now. Returns no row if another
-- session had locked the job with that key.
select
  jobs.id,
  tasks.identifier,
  job_queues.queue_name,
  :job_columns,
  jobs.job_queue_id
from :schema.add_job(
  identifier => $1::text,
  payload => $2::text::json,
  queue_name => $3::text,
  run_at => coalesce(
    $4::text::timestamptz,
    -- An interval times a number uses floating point, which is exact for small numbers.
    pg_catalog.now()
      + ($5::bigint / 3600000000)::float8 * interval '1 hour'
      + ($5::bigint % 3600000000)::float8 * interval '1 microsecond'
  ),
  max_attempts => $6::int,
  job_key => $7::text,
  priority => $8::int,
  flags => $9::text[],
  job_key_mode => $10::text
) as jobs
left join :schema._private_tasks as tasks on tasks.id = jobs.task_id
left join :schema._private_job_queues as job_queues on job_queues.id = jobs.job_queue_id
where jobs.id is not null;
