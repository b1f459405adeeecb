select
  coalesce(locked_by, 'unknown') as worker,
  pg_catalog.count(*) filter (where is_job) as jobs,
  pg_catalog.count(*) filter (where not is_job) as queues,
  extract(epoch from pg_catalog.now() - pg_catalog.min(locked_at))::float8 as oldest
from (
  select locked_by, locked_at, true as is_job
  from "${schema}"._private_jobs
  where locked_at is not null
  union all
  select locked_by, locked_at, false
  from "${schema}"._private_job_queues
  where locked_at is not null
) as locks
group by locked_by
order by oldest desc
limit 50
