-- Claim up to $4 ready jobs of tasks $2 for pool $1, without the flags $3, at time $5 or now.
--
-- An empty result means that no job is ready. A result of fewer than $4 rows does not. The first
-- ready job is always in the result, unless another session has locked its row.
--
-- The statement finds candidates without locks, then locks the first of them together. If the
-- soonest jobs are not enough, other searches follow, each only if the one before it found nothing:
-- a condition without a column turns the whole step off. The cost depends on the jobs that are
-- claimed, not on the size of the tables. That needs the indexes gwpy_…. For a schema without them,
-- see claim_jobs_unindexed. Two searches cost more: of jobs with forbidden flags, which are read one
-- by one, and of thousands of named queues. After those, claim_jobs_around finds the next jobs.
--
-- For the planner, a separate step reads the parameters, and limits are beside plain numbers. So it
-- sees the same cheap statement for all arguments, keeps one plan and does not compile it.
with recursive :claim_params,
:soonest_jobs,
:soonest_candidates,
near_fails as (
  select case
      when (select pg_catalog.count(*) from soonest) < enough then false
      else (
        select pg_catalog.count(*) from (select from near limit (select max_jobs from params)) as found
      ) < max_jobs
    end as yes
  from params
), soonest_end as materialized (
  -- Once, not for each job that is claimed.
  select priority, run_at
  from soonest
  where (select yes from near_fails)
  order by priority desc, run_at desc
  limit 1
), queues_with_jobs as (
  -- Reads one entry per queue, by the index.
  (
    select jobs.job_queue_id
    from :schema._private_jobs as jobs
    where (select yes from near_fails)
      and jobs.is_available = true
      and jobs.job_queue_id is not null
    order by jobs.job_queue_id
    limit 1
  )
  union all
  select (
    select jobs.job_queue_id
    from :schema._private_jobs as jobs
    where jobs.is_available = true
      and jobs.job_queue_id > before.job_queue_id
    order by jobs.job_queue_id
    limit 1
  )
  from queues_with_jobs as before
  where before.job_queue_id is not null
), some_queues as (
  select job_queue_id
  from queues_with_jobs
  where job_queue_id is not null
  limit (select few from params)
), few_queues as (
  select case
      when (select not yes from near_fails) then false
      when (select pg_catalog.count(distinct job_queue_id) from soonest) >= few then false
      else (select pg_catalog.count(*) from some_queues) < few
    end as yes
  from params
), many_queues as (
  select near_fails.yes and not few_queues.yes as yes
  from near_fails, few_queues
), queues_are_small as (
  -- Reading all of them is then cheaper than finding thousands one by one.
  select coalesce((
    select pg_catalog.pg_relation_size(job_queues.tableoid) <= 4000000
    from :schema._private_job_queues as job_queues
    limit 1
  ), true) as yes
), far as (
  -- Thousands more in the same order: each may wait for another queue.
  select job.id, job.task_id, job.job_queue_id, job.priority, job.run_at
  from (
    select jobs.id, jobs.task_id, jobs.job_queue_id, jobs.priority, jobs.run_at
    from :schema._private_jobs as jobs
    where (select yes from many_queues)
      and jobs.is_available = true
    order by jobs.priority, jobs.run_at
    limit 8000
  ) as job
  where case
    when job.job_queue_id is null then true
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
  limit (select enough from params)
), far_heads as (
  select distinct on (coalesce(-job.job_queue_id, job.id))
    job.id,
    job.job_queue_id,
    job.priority,
    job.run_at
  from (
    select id, job_queue_id, priority, run_at
    from far
    where run_at <= (select claim_time from params)
      and task_id = any ((select tasks from params)::int[])
    limit (select enough from params)
  ) as job
  where (select flags from params) is null or (
    select (jobs.flags ?| (select flags from params)) is not true
    from :schema._private_jobs as jobs
    where jobs.id = job.id
  )
  order by coalesce(-job.job_queue_id, job.id), job.priority, job.run_at, job.id
), far_fails as (
  select (select yes from many_queues) and not exists (select from far_heads) as yes
), free_lanes as (
  -- Jobs of one task and one priority are a lane, in the order in which they run.
  -- The next lane is searched by both, and may belong to another task: to the planner an index by
  -- priority alone would seem as good, and be full of other tasks.
  select
    tasks.task_id,
    (
      select case when job.task_id = tasks.task_id then job.priority end
      from (
        select jobs.task_id, jobs.priority
        from :schema._private_jobs as jobs
        where jobs.is_available = true
          and jobs.job_queue_id is null
          and row(jobs.task_id, jobs.priority) >= row(tasks.task_id, (-32768)::smallint)
        order by jobs.task_id, jobs.priority
        limit 1
      ) as job
    ) as priority
  from pg_catalog.unnest((select tasks from params)) as tasks (task_id)
  where (select few_queues.yes or far_fails.yes from few_queues, far_fails)
  union all
  select
    before.task_id,
    (
      select case when job.task_id = before.task_id then job.priority end
      from (
        select jobs.task_id, jobs.priority
        from :schema._private_jobs as jobs
        where jobs.is_available = true
          and jobs.job_queue_id is null
          and row(jobs.task_id, jobs.priority) > row(before.task_id, before.priority)
        order by jobs.task_id, jobs.priority
        limit 1
      ) as job
    )
  from free_lanes as before
  where before.priority is not null
), free as (
  select id, job_queue_id, priority, run_at
  from (
    select job.id, job.job_queue_id, job.priority, job.run_at
    from unnest(
      array(select task_id from free_lanes where priority is not null),
      array(select priority from free_lanes where priority is not null)
    ) as lane (task_id, priority)
    cross join lateral (
      select id, job_queue_id, priority, run_at
      from (
        select jobs.id, jobs.job_queue_id, jobs.priority, jobs.run_at
        from :schema._private_jobs as jobs
        where jobs.is_available = true
          and jobs.job_queue_id is null
          and jobs.task_id = lane.task_id
          and jobs.priority = lane.priority
          and jobs.run_at <= (select claim_time from params)
          and (jobs.flags ?| (select flags from params)) is not true
        order by jobs.run_at, jobs.id
        limit 2550
      ) as job
      limit (select enough from params)
    ) as job
    order by job.priority, job.run_at, job.id
    limit 2550
  ) as job
  limit (select enough from params)
), queued_lanes as (
  select
    tasks.task_id,
    (
      select case when job.task_id = tasks.task_id then job.priority end
      from (
        select jobs.task_id, jobs.priority
        from :schema._private_jobs as jobs
        where jobs.is_available = true
          and jobs.job_queue_id is not null
          and row(jobs.task_id, jobs.priority) >= row(tasks.task_id, (-32768)::smallint)
        order by jobs.task_id, jobs.priority
        limit 1
      ) as job
    ) as priority
  from pg_catalog.unnest((select tasks from params)) as tasks (task_id)
  where (select yes from far_fails)
  union all
  select
    before.task_id,
    (
      select case when job.task_id = before.task_id then job.priority end
      from (
        select jobs.task_id, jobs.priority
        from :schema._private_jobs as jobs
        where jobs.is_available = true
          and jobs.job_queue_id is not null
          and row(jobs.task_id, jobs.priority) > row(before.task_id, before.priority)
        order by jobs.task_id, jobs.priority
        limit 1
      ) as job
    )
  from queued_lanes as before
  where before.priority is not null
), queued as (
  select job.id, job.job_queue_id, job.priority, job.run_at, job.is_allowed, job.nth
  from unnest(
    array(select task_id from queued_lanes where priority is not null),
    array(select priority from queued_lanes where priority is not null)
  ) as lane (task_id, priority)
  cross join lateral (
    select id, job_queue_id, priority, run_at, is_allowed, pg_catalog.row_number() over () as nth
    from (
      select
        jobs.id,
        jobs.job_queue_id,
        jobs.priority,
        jobs.run_at,
        (jobs.flags ?| (select flags from params)) is not true as is_allowed
      from :schema._private_jobs as jobs
      where jobs.is_available = true
        and jobs.job_queue_id is not null
        and jobs.task_id = lane.task_id
        and jobs.priority = lane.priority
        and jobs.run_at <= (select claim_time from params)
      order by jobs.run_at, jobs.id
      limit 2550
    ) as job
    limit (select enough from params)
  ) as job
), horizon as (
  -- A lane continues after the rows that were read. The rows after those have no defined order.
  select priority, run_at, id
  from queued
  where nth = (select enough from params)
  order by priority, run_at, id
  limit 1
), queued_heads as (
  select job.id, job.job_queue_id, job.priority, job.run_at
  from (
    select distinct on (job_queue_id) id, job_queue_id, priority, run_at
    from queued
    where is_allowed
    order by job_queue_id, priority, run_at, id
  ) as job
  where (
    select job_queues.is_available
    from :schema._private_job_queues as job_queues
    where job_queues.id = job.job_queue_id
  )
), lanes as (
  select job.id, job.job_queue_id, job.priority, job.run_at
  from (
    select id, job_queue_id, priority, run_at
    from free
    where (select yes from far_fails)
    union all
    select id, job_queue_id, priority, run_at
    from queued_heads
  ) as job
  left join horizon on true
  where horizon.id is null
    or row(job.priority, job.run_at, job.id) <= row(horizon.priority, horizon.run_at, horizon.id)
), lanes_fail as (
  select (select yes from far_fails) and not exists (select from lanes) as yes
), ask_all_queues as (
  select few_queues.yes or lanes_fail.yes as yes
  from few_queues, lanes_fail
), heads_of_all as (
  select head.id, head.job_queue_id, head.priority, head.run_at
  from queues_with_jobs as queue
  cross join lateral (
    select jobs.id, jobs.job_queue_id, jobs.priority, jobs.run_at
    from :schema._private_jobs as jobs
    where jobs.is_available = true
      and jobs.job_queue_id = queue.job_queue_id
      and jobs.run_at <= (select claim_time from params)
      and jobs.task_id = any ((select tasks from params)::int[])
      and (jobs.flags ?| (select flags from params)) is not true
    order by jobs.priority, jobs.run_at, jobs.id
    limit 1
  ) as head
  where (select yes from ask_all_queues)
    and (
      select job_queues.is_available
      from :schema._private_job_queues as job_queues
      where job_queues.id = queue.job_queue_id
    )
), candidates as (
  -- All but one of these are empty. They are read only as far as needed.
  select id, job_queue_id, priority, run_at
  from near
  where (select not yes from near_fails)
  union all
  (
    select id, job_queue_id, priority, run_at
    from far_heads
    order by priority, run_at, id
  )
  union all
  (
    select id, job_queue_id, priority, run_at
    from lanes
    order by priority, run_at, id
  )
  union all
  (
    select id, job_queue_id, priority, run_at
    from (
      select id, job_queue_id, priority, run_at
      from heads_of_all
      union all
      select id, job_queue_id, priority, run_at
      from free
      where (select yes from ask_all_queues)
    ) as job
    order by priority, run_at, id
  )
),
:lock_jobs,
:priorities,
:fallback_jobs,
:claim_locked_jobs,
  -- The seconds that the search took in the server, computed once, and whether the job is behind the
  -- soonest jobs.
  (
    select extract(
      epoch from pg_catalog.clock_timestamp() - pg_catalog.statement_timestamp()
    )::text
  ),
  (
    select row(jobs.priority, jobs.run_at) > row(soonest_end.priority, soonest_end.run_at)
    from soonest_end
  );
