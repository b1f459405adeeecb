-- Count the ready jobs of the same named queue that run before job $1, up to $2.
select pg_catalog.count(*)
from (
  select
  from :schema._private_jobs as jobs
  join :schema._private_jobs as own
    on own.job_queue_id = jobs.job_queue_id
    and (jobs.priority, jobs.run_at, jobs.id) < (own.priority, own.run_at, own.id)
  where own.id = $1::bigint
    and jobs.is_available = true
    and jobs.run_at <= pg_catalog.now()
  limit $2::int
) as ahead;
