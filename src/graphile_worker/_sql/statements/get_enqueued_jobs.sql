-- Return the jobs with attempts left, of task $1 or of all, in the order in which they run.
select
  jobs.id,
  tasks.identifier,
  job_queues.queue_name,
  :job_columns
from :schema._private_jobs as jobs
join :schema._private_tasks as tasks on tasks.id = jobs.task_id
left join :schema._private_job_queues as job_queues on job_queues.id = jobs.job_queue_id
where jobs.attempts < jobs.max_attempts
  and ($1::text is null or tasks.identifier = $1::text)
order by jobs.priority, jobs.run_at, jobs.id;
