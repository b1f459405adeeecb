-- Return job $2, its state, the current time, and the pool that has locked its named queue. Pools
-- $1 are dead.
select
  jobs.id,
  tasks.identifier,
  job_queues.queue_name,
  :job_columns,
  :job_state,
  extract(epoch from pg_catalog.now())::text,
  jobs.job_queue_id,
  extract(epoch from job_queues.locked_at)::text,
  job_queues.locked_by
from :schema._private_jobs as jobs
left join :schema._private_tasks as tasks on tasks.id = jobs.task_id
left join :schema._private_job_queues as job_queues on job_queues.id = jobs.job_queue_id
where jobs.id = $2::bigint;
