-- Renew the locks of pools $1 on jobs $2 and named queues $3, except rows that another session has
-- locked. Returns the ids of the jobs that they have locked.
with owned_jobs as (
  select
    jobs.id,
    -- Superseded by its key. Only the order of the two times shows that, so it is kept.
    jobs.attempts >= jobs.max_attempts
      and jobs.key is null
      and jobs.updated_at > jobs.locked_at as is_superseded
  from :schema._private_jobs as jobs
  where jobs.id = any ($2::bigint[])
    and jobs.locked_by = any ($1::text[])
  for update skip locked
), jobs_renewed as (
  update :schema._private_jobs as jobs
  set locked_at = pg_catalog.now(),
      updated_at = case
        when jobs.id = any (array(select id from owned_jobs where is_superseded))
          then pg_catalog.now() + interval '1 microsecond'
        else jobs.updated_at
      end
  where jobs.id = any (array(select id from owned_jobs))
), owned_queues as (
  select job_queues.id
  from :schema._private_job_queues as job_queues
  where job_queues.id = any ($3::int[])
    and job_queues.locked_by = any ($1::text[])
  for update skip locked
), queues_renewed as (
  update :schema._private_job_queues
  set locked_at = pg_catalog.now()
  where id = any (array(select id from owned_queues))
)
select jobs.id
from :schema._private_jobs as jobs
where jobs.id = any ($2::bigint[])
  and jobs.locked_by = any ($1::text[]);
