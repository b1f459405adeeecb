-- Count the jobs that the conditions select by state, with the first and the last id. Pools $1 are
-- dead.
select
  :job_state as state,
  pg_catalog.count(*),
  pg_catalog.min(jobs.id),
  pg_catalog.max(jobs.id)
from :schema._private_jobs as jobs
where :conditions
group by state;
