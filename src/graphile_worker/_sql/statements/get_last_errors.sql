-- Return the start of the last error of each of the jobs $1.
select jobs.id, pg_catalog.left(jobs.last_error, 300)
from :schema._private_jobs as jobs
where jobs.id = any ($1::bigint[])
  and jobs.last_error is not null;
