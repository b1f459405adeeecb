-- Use up all attempts of jobs $1 for reason $2, except jobs that a worker has locked.
select
  jobs.id,
  tasks.identifier,
  job_queues.queue_name,
  :job_columns
from :schema.permanently_fail_jobs($1::bigint[], $2::text) as jobs
left join :schema._private_tasks as tasks on tasks.id = jobs.task_id
left join :schema._private_job_queues as job_queues on job_queues.id = jobs.job_queue_id
order by jobs.id;
