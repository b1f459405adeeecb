-- Whether $9 is still valid, and the jobs that the statement added with the columns of add_jobs. One
-- row of nulls if there are none.
select
  found.is_inspected,
  jobs.id,
  tasks.identifier,
  job_queues.queue_name,
  :job_columns,
  jobs.job_queue_id,
  jobs.task_id,
  extract(epoch from pg_catalog.now())::text
from found
left join added as jobs on true
left join :schema._private_tasks as tasks on tasks.id = jobs.task_id
left join :schema._private_job_queues as job_queues on job_queues.id = jobs.job_queue_id
