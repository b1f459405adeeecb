-- Return the locked job of each of the named queues $1, and its task. Reads the pages that contain
-- locked jobs, if the index gwpy_locked_jobs exists.
select distinct on (jobs.job_queue_id)
  jobs.job_queue_id,
  jobs.id,
  tasks.identifier
from :schema._private_jobs as jobs
left join :schema._private_tasks as tasks on tasks.id = jobs.task_id
where jobs.locked_at is not null
  -- With a bound, the index leaves out pages without locked jobs.
  and jobs.locked_at >= '-infinity'::timestamptz
  and jobs.job_queue_id = any ($1::int[])
order by jobs.job_queue_id, jobs.locked_at;
