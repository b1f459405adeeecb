-- Renew the locks of pools $1 on jobs $2 and named queues $3, where nobody is in the way; which of
-- these jobs they hold.
with jobs_held as (
  select jobs.id
  from :schema._private_jobs as jobs
  where jobs.id = any ($2::bigint[])
    and jobs.locked_by = any ($1::text[])
    -- Superseded by its key, which only the age of its lock tells afterwards.
    and not (
      jobs.attempts >= jobs.max_attempts
      and jobs.key is null
      and jobs.updated_at > jobs.locked_at
    )
  for update skip locked
), jobs_renewed as (
  update :schema._private_jobs
  set locked_at = now()
  where id = any (array(select id from jobs_held))
), queues_held as (
  select job_queues.id
  from :schema._private_job_queues as job_queues
  where job_queues.id = any ($3::int[])
    and job_queues.locked_by = any ($1::text[])
  for update skip locked
), queues_renewed as (
  update :schema._private_job_queues
  set locked_at = now()
  where id = any (array(select id from queues_held))
)
select jobs.id
from :schema._private_jobs as jobs
where jobs.id = any ($2::bigint[])
  and jobs.locked_by = any ($1::text[]);
