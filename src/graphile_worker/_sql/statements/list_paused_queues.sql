-- Return the names of the paused queues, and who paused each.
select
  job_queues.queue_name,
  pg_catalog.substr(job_queues.locked_by, 8)
from :schema._private_job_queues as job_queues
where job_queues.locked_at is not null
  and pg_catalog.starts_with(job_queues.locked_by, 'paused:')
order by job_queues.queue_name;
