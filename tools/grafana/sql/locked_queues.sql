select
  queue_name as queue,
  locked_by as worker,
  extract(epoch from pg_catalog.now() - locked_at)::float8 as locked
from "${schema}"._private_job_queues
where locked_at is not null
order by locked_at
limit 50
