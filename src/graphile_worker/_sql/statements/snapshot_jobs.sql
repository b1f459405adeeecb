-- Count all jobs in one pass, by task and state, where pools $1 are dead. Locked jobs have a row
-- each. Jobs of a locked queue, and jobs whose queue is deleted, have a row for each queue. Each
-- row has the seconds since its first job was due, the first and the last id, and the seconds since
-- the first and the last permanent failure. At most $2 rows.
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
