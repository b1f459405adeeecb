-- Return the newest jobs before id $2 that the conditions select, at most $3, and the current time.
-- Pools $1 are dead.
select
  jobs.id,
  tasks.identifier,
  job_queues.queue_name,
  jobs.state,
  jobs.priority,
  extract(epoch from jobs.run_at)::text,
  jobs.attempts,
  jobs.max_attempts,
  jobs.error,
  extract(epoch from jobs.created_at)::text,
  jobs.key,
  jobs.flags::text,
  extract(epoch from jobs.locked_at)::text,
  jobs.locked_by,
  extract(epoch from jobs.updated_at)::text,
  extract(epoch from pg_catalog.now())::text
from (
  select
    jobs.id,
    jobs.task_id,
    jobs.job_queue_id,
    :job_state as state,
    jobs.priority,
    jobs.run_at,
    jobs.attempts,
    jobs.max_attempts,
    -- The first lines; the traceback follows.
    pg_catalog.left(jobs.last_error, 600) as error,
    jobs.created_at,
    jobs.updated_at,
    jobs.key,
    jobs.flags,
    jobs.locked_at,
    jobs.locked_by
  from :schema._private_jobs as jobs
  where jobs.id < $2::bigint
    and :conditions
  order by jobs.id desc
  limit $3::int
) as jobs
left join :schema._private_tasks as tasks on tasks.id = jobs.task_id
left join :schema._private_job_queues as job_queues on job_queues.id = jobs.job_queue_id
order by jobs.id desc;
