-- Remove the job with key $1, or prevent another attempt if it is running.
select
  jobs.id,
  tasks.identifier,
  job_queues.queue_name,
  :job_columns
from :schema.remove_job($1::text) as jobs
left join :schema._private_tasks as tasks on tasks.id = jobs.task_id
left join :schema._private_job_queues as job_queues on job_queues.id = jobs.job_queue_id
where jobs.id is not null;
