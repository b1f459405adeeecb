-- Unlock all jobs and queues of pools $1, which must be dead. Returns the ids of the jobs, and how
-- many queues had a lock. Both are locked first, so that the answer is what the function finds.
with locked as materialized (
  select
    coalesce(pg_catalog.array_agg(jobs.id order by jobs.id), '{}') as job_ids,
    (
      select pg_catalog.count(*)
      from (
        select
        from :schema._private_job_queues as job_queues
        where job_queues.locked_by = any ($1::text[])
        for update
      ) as job_queues
    ) as queue_count
  from (
    select jobs.id
    from :schema._private_jobs as jobs
    where jobs.locked_by = any ($1::text[])
    for update
  ) as jobs
)
select
  locked.job_ids,
  locked.queue_count,
  :schema.force_unlock_workers($1::text[])
from locked;
