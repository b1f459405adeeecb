-- Who has locked how many named queues, and how long ago the first of them.
select
  job_queues.locked_by,
  pg_catalog.count(*),
  pg_catalog.count(*) filter (where job_queues.locked_at < pg_catalog.now() - interval '4 hours'),
  pg_catalog.min(job_queues.queue_name),
  extract(
    epoch from pg_catalog.now()
      - pg_catalog.min(job_queues.locked_at)
        filter (where pg_catalog.isfinite(job_queues.locked_at))
  )::float8
from :schema._private_job_queues as job_queues
where job_queues.locked_at is not null
group by job_queues.locked_by
order by 2 desc
limit 1000;
