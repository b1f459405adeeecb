-- Return the job of named queue $1 with the oldest lock. Reads the whole table.
select jobs.id, tasks.identifier
from :schema._private_jobs as jobs
left join :schema._private_tasks as tasks on tasks.id = jobs.task_id
where jobs.job_queue_id = $1::int
  and jobs.locked_at is not null
order by jobs.locked_at
limit 1;
