select
  jobs.id,
  tasks.identifier as task,
  extract(epoch from pg_catalog.now() - jobs.locked_at)::float8 as running,
  jobs.attempts || '/' || jobs.max_attempts as attempt,
  queues.queue_name as queue,
  jobs.locked_by as worker
from "${schema}"._private_jobs as jobs
left join "${schema}"._private_tasks as tasks on tasks.id = jobs.task_id
left join "${schema}"._private_job_queues as queues on queues.id = jobs.job_queue_id
where jobs.locked_at is not null
order by jobs.locked_at
limit 50
