-- Return at most $5 named queues after rank $3 and name $4, whose name contains pattern $2. The rank
-- is 0 for a queue whose lock is stale, because pools $1 are dead or it is old, or that is paused, 1
-- for other locked queues, 2 for the rest.
select
  job_queues.id,
  job_queues.queue_name,
  extract(epoch from job_queues.locked_at)::text,
  job_queues.locked_by,
  job_queues.rank,
  extract(epoch from pg_catalog.now())::text
from (
  select
    job_queues.id,
    job_queues.queue_name,
    job_queues.locked_at,
    job_queues.locked_by,
    case
      when job_queues.locked_at is null then 2
      when job_queues.locked_at < pg_catalog.now() - interval '4 hours'
        or job_queues.locked_at > pg_catalog.now() + interval '1 day'
        or job_queues.locked_by = any ($1::text[])
        or job_queues.locked_by like 'paused:%'
        then 0
      else 1
    end as rank
  from :schema._private_job_queues as job_queues
  where job_queues.queue_name ilike $2::text
) as job_queues
where row(job_queues.rank, job_queues.queue_name collate "C") > row($3::int, $4::text collate "C")
order by job_queues.rank, job_queues.queue_name collate "C"
limit $5::int;
