-- Claim jobs like claim_jobs, in a schema without its indexes.
--
-- The steps are those of claim_jobs. If the soonest jobs are not enough, all jobs are searched.
with recursive :claim_params,
:soonest_jobs,
:soonest_candidates,
near_fails as (
  select
    (select pg_catalog.count(*) from soonest) = enough
    and (
      select pg_catalog.count(*) from (select from near limit (select max_jobs from params)) as found
    ) < max_jobs as yes
  from params
), queues_are_small as (
  -- Reading all of them is then cheaper than finding thousands one by one.
  select coalesce((
    select pg_catalog.pg_relation_size(job_queues.tableoid) <= 4000000
    from :schema._private_job_queues as job_queues
    limit 1
  ), true) as yes
),
:priorities,
free as (
  -- Graphile Worker for Node has an index for these. One priority at a time: see claim_plain_jobs.
  select job.id, job.job_queue_id, job.priority, job.run_at
  from pg_catalog.unnest(array(
    select priority
    from priorities
    where priority is not null
      and (select yes from near_fails)
  )) as line (priority)
  cross join lateral (
    select job.id, job.job_queue_id, job.priority, job.run_at
    from (
      select jobs.id, jobs.job_queue_id, jobs.priority, jobs.run_at
      from :schema._private_jobs as jobs
      where jobs.is_available = true
        and jobs.job_queue_id is null
        and jobs.priority = line.priority
        and jobs.run_at <= (select claim_time from params)
        and jobs.task_id = any ((select tasks from params)::int[])
      order by jobs.run_at
      offset 0
    ) as job
    where (select flags from params) is null or (
      select (jobs.flags ?| (select flags from params)) is not true
      from :schema._private_jobs as jobs
      where jobs.id = job.id
    )
    limit 2550
  ) as job
  limit (select enough from params)
), queued as (
  -- If all queues are locked, their jobs need not be read.
  select job.id, job.job_queue_id, job.priority, job.run_at
  from pg_catalog.unnest(array(
    select priority
    from priorities
    where priority is not null
      and (
        select near_fails.yes
          and exists (select from :schema._private_job_queues where locked_at is null)
        from near_fails
      )
  )) as line (priority)
  cross join lateral (
    select job.id, job.job_queue_id, job.priority, job.run_at
    from (
      select jobs.id, jobs.job_queue_id, jobs.priority, jobs.run_at
      from :schema._private_jobs as jobs
      where jobs.is_available = true
        and jobs.job_queue_id is not null
        and jobs.priority = line.priority
        and jobs.run_at <= (select claim_time from params)
        and jobs.task_id = any ((select tasks from params)::int[])
      order by jobs.run_at
      offset 0
    ) as job
    where case
        when (select yes from queues_are_small) then job.job_queue_id in (
          select job_queues.id
          from :schema._private_job_queues as job_queues
          where job_queues.locked_at is null
        )
        else (
          select job_queues.is_available
          from :schema._private_job_queues as job_queues
          where job_queues.id = job.job_queue_id
        )
      end
      and ((select flags from params) is null or (
        select (jobs.flags ?| (select flags from params)) is not true
        from :schema._private_jobs as jobs
        where jobs.id = job.id
      ))
    limit 2550
  ) as job
  limit (select enough from params)
), horizon as (
  -- Queued jobs continue after the rows that were read. Later rows have no defined order.
  select id, priority, run_at
  from queued
  offset (select enough - 1 from params)
  limit 1
), rest_heads as (
  select distinct on (coalesce(-job.job_queue_id, job.id))
    job.id,
    job.job_queue_id,
    job.priority,
    job.run_at
  from (
    select id, job_queue_id, priority, run_at
    from free
    union all
    select id, job_queue_id, priority, run_at
    from queued
  ) as job
  left join horizon on true
  where horizon.id is null
    or row(job.priority, job.run_at) <= row(horizon.priority, horizon.run_at)
  order by coalesce(-job.job_queue_id, job.id), job.priority, job.run_at, job.id
), candidates as (
  -- One of these is empty. They are read only as far as needed.
  select id, job_queue_id, priority, run_at
  from near
  where (select not yes from near_fails)
  union all
  (
    select id, job_queue_id, priority, run_at
    from rest_heads
    order by priority, run_at, id
  )
),
:lock_jobs,
:fallback_jobs,
:claim_locked_jobs;
