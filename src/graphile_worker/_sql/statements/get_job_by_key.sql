-- Return the job with key $1.
select
  jobs.id,
  tasks.identifier,
  job_queues.queue_name,
  :job_columns
from :schema._private_jobs as jobs
left join :schema._private_tasks as tasks on tasks.id = jobs.task_id
left join :schema._private_job_queues as job_queues on job_queues.id = jobs.job_queue_id
where jobs.key = $1::text;
