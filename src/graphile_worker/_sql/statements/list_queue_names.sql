-- Return the names of at most $1 named queues, in their order.
select job_queues.queue_name
from :schema._private_job_queues as job_queues
order by job_queues.queue_name
limit $1::int;
