-- Count the due jobs of the named queues $1 as count_queue_jobs does, without a limit, in one pass
-- over the table.
select
  jobs.job_queue_id,
  pg_catalog.count(*),
  (
    extract(epoch from pg_catalog.now()) - extract(epoch from pg_catalog.min(jobs.run_at))
  )::float8
from :schema._private_jobs as jobs
where jobs.job_queue_id = any ($1::int[])
  and jobs.is_available = true
  and jobs.run_at <= pg_catalog.now()
group by jobs.job_queue_id;
