-- Lock the queue named $1 if a job of it runs or can run, so that this job stays until the end of
-- the transaction.
select job_queues.id
from :schema._private_job_queues as job_queues
where
  job_queues.queue_name = $1::text
  and (
    job_queues.locked_at is not null
    or exists (
      select 1
      from :schema._private_jobs as jobs
      where jobs.job_queue_id = job_queues.id and jobs.is_available = true
    )
  )
for update;
