-- Release all locks of pools $1 in a database without the registry of pools. Returns the jobs. Each
-- runs $2 microseconds from now at the earliest. Its attempt counts, but is not the last.
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
      run_at = :delayed_run_at,
      last_error = 'Job recovered after worker interruption: it was held by pool ' || owned.locked_by,
      locked_by = null,
      locked_at = null
  from owned
  where jobs.id = owned.id
    and jobs.id = any (array(select id from owned))
  returning :stored_columns
), unlocked_queues as (
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
