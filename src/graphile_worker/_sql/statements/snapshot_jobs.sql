-- All jobs in one pass: how many of each task are in which state, where pools $1 are dead. Locked jobs
-- have a row each; jobs of a locked queue have a row for each queue, and so do jobs whose queue is deleted.
-- Then how long ago the first was due, in seconds, the first id and the last, and how long ago the first
-- and the last failed, in seconds, if they failed permanently. At most $2 rows.
select
  jobs.task_id,
  :job_state,
  case
    when jobs.locked_at is not null then jobs.id
    when job_queues.locked_at is not null then jobs.job_queue_id
  end,
  case when job_queues.id is null then jobs.job_queue_id end,
  pg_catalog.count(*),
  -- Not as a difference of times: one of them may be infinite.
  (extract(epoch from pg_catalog.now()) - extract(epoch from pg_catalog.min(jobs.run_at)))::float8,
  pg_catalog.min(jobs.id),
  pg_catalog.max(jobs.id),
  (
    extract(epoch from pg_catalog.now())
    - extract(
      epoch from pg_catalog.min(:failed_at) filter (where jobs.attempts >= jobs.max_attempts)
    )
  )::float8,
  (
    extract(epoch from pg_catalog.now())
    - extract(
      epoch from pg_catalog.max(:failed_at) filter (where jobs.attempts >= jobs.max_attempts)
    )
  )::float8
from :schema._private_jobs as jobs
left join :schema._private_job_queues as job_queues on job_queues.id = jobs.job_queue_id
group by 1, 2, 3, 4
-- The limit cuts off locked jobs only.
order by pg_catalog.min(jobs.locked_at) nulls first
limit $2::int;
