-- All jobs in one pass: how many of each task are in which state, where pools $1 are dead; those that are
-- locked one by one, those of a named queue that is held by queue. Beside them how long ago the first was
-- due, in seconds, the first id and the last. At most $2 rows.
select
  jobs.task_id,
  :job_state,
  case
    when jobs.locked_at is not null then jobs.id
    when jobs.job_queue_id in (
      select job_queues.id
      from :schema._private_job_queues as job_queues
      where job_queues.locked_at is not null
    ) then jobs.job_queue_id
  end,
  pg_catalog.count(*),
  -- Not as a difference of times: one of them may be infinite.
  (extract(epoch from pg_catalog.now()) - extract(epoch from pg_catalog.min(jobs.run_at)))::float8,
  pg_catalog.min(jobs.id),
  pg_catalog.max(jobs.id)
from :schema._private_jobs as jobs
group by 1, 2, 3
-- What is left out, if anything, is locked.
order by pg_catalog.min(jobs.locked_at) nulls first
limit $2::int;
