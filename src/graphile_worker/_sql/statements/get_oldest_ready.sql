-- Return how many seconds the oldest ready job of each task has waited, null without one, whether
-- that is certain, and whether all tasks were read.
--
-- Reads the first entry of each task and priority in the indexes gwpy_free_jobs and
-- gwpy_queued_jobs, at any number of jobs. At most $1 pairs of task and priority are read in each
-- index. In a pair, a job whose queue is locked leads to the next one, among the first $2 jobs. If
-- the queues of all of them are locked, it is not certain that no older job is ready.
with recursive free_lanes as (
  (
    select jobs.task_id, jobs.priority, jobs.run_at, 1 as position
    from :schema._private_jobs as jobs
    where jobs.is_available = true
      and jobs.job_queue_id is null
    order by jobs.task_id, jobs.priority, jobs.run_at
    limit 1
  )
  union all
  select lane.task_id, lane.priority, lane.run_at, before.position + 1
  from free_lanes as before
  cross join lateral (
    select jobs.task_id, jobs.priority, jobs.run_at
    from :schema._private_jobs as jobs
    where jobs.is_available = true
      and jobs.job_queue_id is null
      and row(jobs.task_id, jobs.priority) > row(before.task_id, before.priority)
    order by jobs.task_id, jobs.priority, jobs.run_at
    limit 1
  ) as lane
  where before.position < $1::int
), queued_lanes as (
  (
    select jobs.task_id, jobs.priority, 1 as position
    from :schema._private_jobs as jobs
    where jobs.is_available = true
      and jobs.job_queue_id is not null
    order by jobs.task_id, jobs.priority, jobs.run_at
    limit 1
  )
  union all
  select lane.task_id, lane.priority, before.position + 1
  from queued_lanes as before
  cross join lateral (
    select jobs.task_id, jobs.priority
    from :schema._private_jobs as jobs
    where jobs.is_available = true
      and jobs.job_queue_id is not null
      and row(jobs.task_id, jobs.priority) > row(before.task_id, before.priority)
    order by jobs.task_id, jobs.priority, jobs.run_at
    limit 1
  ) as lane
  where before.position < $1::int
), first_jobs as (
  select free_lanes.task_id, free_lanes.run_at, true as is_certain
  from free_lanes
  union all
  select
    lane.task_id,
    job.run_at,
    case
      when job.run_at is null then (
        select pg_catalog.count(*) < $2::int
        from (
          select
          from :schema._private_jobs as jobs
          where jobs.is_available = true
            and jobs.job_queue_id is not null
            and jobs.task_id = lane.task_id
            and jobs.priority = lane.priority
            and jobs.run_at <= pg_catalog.now()
          limit $2::int
        ) as due_jobs
      )
      else true
    end
  from queued_lanes as lane
  left join lateral (
    select due_jobs.run_at
    from (
      select jobs.run_at, jobs.job_queue_id
      from :schema._private_jobs as jobs
      where jobs.is_available = true
        and jobs.job_queue_id is not null
        and jobs.task_id = lane.task_id
        and jobs.priority = lane.priority
        and jobs.run_at <= pg_catalog.now()
      order by jobs.run_at, jobs.id
      limit $2::int
    ) as due_jobs
    where (
      select job_queues.is_available
      from :schema._private_job_queues as job_queues
      where job_queues.id = due_jobs.job_queue_id
    )
    limit 1
  ) as job on true
)
select
  tasks.identifier,
  -- Not as a difference of times: one of them may be infinite.
  (
    extract(epoch from pg_catalog.now())
    - extract(
      epoch from pg_catalog.min(first_jobs.run_at) filter (where first_jobs.run_at <= pg_catalog.now())
    )
  )::float8,
  pg_catalog.bool_and(first_jobs.is_certain),
  (select coalesce(pg_catalog.max(position), 0) < $1::int from free_lanes)
    and (select coalesce(pg_catalog.max(position), 0) < $1::int from queued_lanes)
from first_jobs
join :schema._private_tasks as tasks on tasks.id = first_jobs.task_id
group by tasks.identifier;
