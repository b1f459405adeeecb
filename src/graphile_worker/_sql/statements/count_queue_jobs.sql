-- Count the due jobs of the named queues $1 that no worker has locked, at most $2 of each queue, with
-- the seconds since the first of them was due. Uses the index gwpy_jobs_of_queues.
select
  queues.id,
  due.count,
  due.oldest_seconds
from pg_catalog.unnest($1::int[]) as queues (id)
cross join lateral (
  select
    pg_catalog.count(*) as count,
    -- Not as a difference of times: one of them may be infinite.
    (
      extract(epoch from pg_catalog.now()) - extract(epoch from pg_catalog.min(jobs.run_at))
    )::float8 as oldest_seconds
  from (
    select jobs.run_at
    from :schema._private_jobs as jobs
    where jobs.job_queue_id = queues.id
      and jobs.is_available = true
      and jobs.run_at <= pg_catalog.now()
    limit $2::int
  ) as jobs
) as due
where due.count > 0;
