-- Return the task, state, attempts, error, creation and pool of job $2. Pools $1 are dead.
select
  tasks.identifier,
  :job_state,
  jobs.attempts,
  jobs.last_error,
  extract(epoch from jobs.created_at)::text,
  jobs.locked_by
from :schema._private_jobs as jobs
left join :schema._private_tasks as tasks on tasks.id = jobs.task_id
where jobs.id = $2::bigint;
