-- Count the jobs of a shard, and those without a key and a queue.
select
  pg_catalog.count(*),
  pg_catalog.count(*) filter (where jobs.key is null and jobs.job_queue_id is null)
from :schema._private_jobs as jobs;
