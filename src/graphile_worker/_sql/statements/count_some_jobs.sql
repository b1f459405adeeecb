-- Count at most $2 of the jobs that the conditions select by state, with the first and the last id.
-- Pools $1 are dead.
select
  jobs.state,
  pg_catalog.count(*),
  pg_catalog.min(jobs.id),
  pg_catalog.max(jobs.id)
from (
  select
    :job_state as state,
    jobs.id
  from :schema._private_jobs as jobs
  where :conditions
  limit $2::int
) as jobs
group by jobs.state;
