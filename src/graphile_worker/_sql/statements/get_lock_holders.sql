-- Count the jobs and named queues that each pool has locked, and return since when. Reads the whole
-- table, unless the session prefers indexes.
select
  locks.locked_by,
  pg_catalog.count(*) filter (where locks.is_job),
  pg_catalog.count(*) filter (where not locks.is_job),
  extract(epoch from pg_catalog.min(locks.locked_at))::text
from (
  select jobs.locked_by, jobs.locked_at, true as is_job
  from :schema._private_jobs as jobs
  where jobs.locked_at is not null
    -- With a bound, gwpy_locked_jobs leaves out pages without locked jobs.
    and jobs.locked_at >= '-infinity'::timestamptz
  union all
  select job_queues.locked_by, job_queues.locked_at, false
  from :schema._private_job_queues as job_queues
  where job_queues.locked_at is not null
) as locks
where locks.locked_by is not null
group by locks.locked_by
order by locks.locked_by;
