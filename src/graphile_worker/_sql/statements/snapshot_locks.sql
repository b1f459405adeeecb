-- Return the lock of each of the jobs $1 that is still locked: the pool, its age in seconds, and
-- the attempt.
select
  jobs.id,
  jobs.job_queue_id,
  jobs.locked_by,
  (extract(epoch from pg_catalog.now()) - extract(epoch from jobs.locked_at))::float8,
  jobs.attempts,
  jobs.max_attempts
from :schema._private_jobs as jobs
where jobs.id = any ($1::bigint[])
  and jobs.locked_at is not null;
