-- Claim the locked jobs and their queues, as the last step of a claim.
queues as (
  update :schema._private_job_queues as job_queues
  set locked_by = $1::text,
      locked_at = (select claim_time from params)
  where job_queues.id = any (array(
      select job_queue_id
      from jobs_to_claim
      where job_queue_id is not null
    ))
)
update :schema._private_jobs as jobs
set attempts = jobs.attempts + 1,
    locked_by = $1::text,
    -- With a worker's slow clock, a change before the claim would seem to come after it.
    locked_at = greatest((select claim_time from params), jobs.updated_at)
where jobs.id = any (array(select id from jobs_to_claim))
-- In no order: the worker sorts them, which is cheaper than sorting them here.
returning
  jobs.id,
  jobs.task_id,
  (
    select job_queues.queue_name
    from :schema._private_job_queues as job_queues
    where job_queues.id = jobs.job_queue_id
  ),
  :claimed_columns,
  jobs.job_queue_id
