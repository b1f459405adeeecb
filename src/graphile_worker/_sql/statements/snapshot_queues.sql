-- Return the locked named queues, at most $1, oldest locks first, with their ages in seconds.
select
  job_queues.id,
  job_queues.queue_name,
  job_queues.locked_by,
  (extract(epoch from pg_catalog.now()) - extract(epoch from job_queues.locked_at))::float8
from :schema._private_job_queues as job_queues
where job_queues.locked_at is not null
order by job_queues.locked_at
limit $1::int;
