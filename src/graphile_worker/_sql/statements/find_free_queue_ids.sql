-- Return the widest range of ids without a named queue and without a job that refers to one: its
-- first id and its size.
select used.id + 1, used.next_id - used.id - 1
from (
  select ids.id, pg_catalog.lead(ids.id, 1, 2147483648) over (order by ids.id) as next_id
  from (
    select 0::bigint as id
    union
    select known.id
    from :schema._private_job_queues as known
    union
    -- A job with a missing queue must not get another one by this id.
    select jobs.job_queue_id
    from :schema._private_jobs as jobs
    where jobs.job_queue_id is not null
  ) as ids
) as used
order by 2 desc, 1
limit 1;
