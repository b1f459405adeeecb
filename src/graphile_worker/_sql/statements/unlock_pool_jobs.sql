-- Release all that pools $1 have locked, where there is no registry that would say more; the jobs.
-- Each waits for another $2 microseconds; its attempt counts, but is not its last.
with owned as (
  select jobs.id, jobs.locked_by
  from :schema._private_jobs as jobs
  where jobs.locked_by collate pg_catalog."C" = any ($1::text[])
    and jobs.locked_at is not null
  for update
), jobs as (
  update :schema._private_jobs as jobs
  set attempts = case
        when :is_superseded then jobs.attempts
        else greatest(0, least(jobs.attempts, jobs.max_attempts - 1))
      end,
      run_at = case
        when $2::bigint > 0 then greatest(
          jobs.run_at,
          pg_catalog.now() + $2::bigint::float8 * interval '1 microsecond'
        )
        else jobs.run_at
      end,
      last_error = 'Job recovered after worker interruption: it was held by pool ' || owned.locked_by,
      locked_by = null,
      locked_at = null
  from owned
  where jobs.id = owned.id
    and jobs.id = any (array(select id from owned))
  returning
    jobs.id,
    jobs.task_id,
    jobs.job_queue_id,
    jobs.payload,
    jobs.priority,
    jobs.run_at,
    jobs.attempts,
    jobs.max_attempts,
    jobs.last_error,
    jobs.created_at,
    jobs.updated_at,
    jobs.key,
    jobs.locked_at,
    jobs.locked_by,
    jobs.revision,
    jobs.flags
), freed as (
  update :schema._private_job_queues as job_queues
  set locked_by = null,
      locked_at = null
  where job_queues.locked_by = any ($1::text[])
)
select
  jobs.id,
  tasks.identifier,
  job_queues.queue_name,
  :job_columns
from jobs
left join :schema._private_tasks as tasks on tasks.id = jobs.task_id
left join :schema._private_job_queues as job_queues on job_queues.id = jobs.job_queue_id
order by jobs.id;
