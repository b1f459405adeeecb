-- Return the last id of the $3 jobs after id $1, up to $2, and the ids of those that the conditions
-- select.
select
  pg_catalog.max(jobs.id),
  coalesce(pg_catalog.array_agg(jobs.id order by jobs.id) filter (where :conditions), '{}')
from (
  select
    jobs.id,
    jobs.task_id,
    jobs.job_queue_id,
    jobs.payload,
    jobs.priority,
    jobs.run_at,
    jobs.attempts,
    jobs.max_attempts,
    jobs.last_error,
    jobs.created_at,
    jobs.key,
    jobs.locked_at,
    jobs.locked_by,
    jobs.flags
  from :schema._private_jobs as jobs
  where jobs.id > $1::bigint
    and jobs.id <= $2::bigint
  order by jobs.id
  limit $3::int
) as jobs;
