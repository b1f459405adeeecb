-- Count the jobs that run or could run, of tasks $1, or of all tasks if $1 is null, while tasks $4
-- are paused, like count_runnable, with the indexes gwpy_….
--
-- The cost depends on the number of pairs of task and priority, on the number of named queues with
-- available jobs, and on $2, not on the number of jobs. At most $3 of these pairs are read, and at
-- most $3 of these queues. While a task is paused, it also depends on the number of its jobs in
-- named queues.
with recursive chosen_tasks as (
  select tasks.id
  from :schema._private_tasks as tasks
  where tasks.identifier = any ($1::text[])
), paused_tasks as (
  select tasks.id
  from :schema._private_tasks as tasks
  where tasks.identifier = any ($4::text[])
), free_lanes as (
  -- Jobs of one task and one priority are a lane. Without $1 one search leads from lane to lane.
  -- With $1 there is a search for each task.
  select lane.task_id, lane.priority, lane.run_at, start.task_id as only_task_id, 1 as position
  from (
    select null::int as task_id
    where $1::text[] is null
    union all
    select id
    from chosen_tasks
  ) as start
  cross join lateral (
    select jobs.task_id, jobs.priority, jobs.run_at
    from :schema._private_jobs as jobs
    where jobs.is_available = true
      and jobs.job_queue_id is null
      and row(jobs.task_id, jobs.priority)
        >= row(coalesce(start.task_id, -2147483648), (-32768)::smallint)
    order by jobs.task_id, jobs.priority, jobs.run_at
    limit 1
  ) as lane
  where start.task_id is null or lane.task_id = start.task_id
  union all
  select lane.task_id, lane.priority, lane.run_at, before.only_task_id, before.position + 1
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
  where before.position < $3::int
    and (before.only_task_id is null or lane.task_id = before.only_task_id)
), queues as (
  -- The first job of each queue that has available jobs.
  (
    select jobs.job_queue_id as id, jobs.run_at, 1 as position
    from :schema._private_jobs as jobs
    where jobs.is_available = true
      and jobs.job_queue_id is not null
    order by jobs.job_queue_id, jobs.priority, jobs.run_at
    limit 1
  )
  union all
  select job.queue_id, job.run_at, before.position + 1
  from queues as before
  cross join lateral (
    select jobs.job_queue_id as queue_id, jobs.run_at
    from :schema._private_jobs as jobs
    where jobs.is_available = true
      and jobs.job_queue_id > before.id
    order by jobs.job_queue_id, jobs.priority, jobs.run_at
    limit 1
  ) as job
  where before.position < $3::int
)
select
  pg_catalog.count(*) filter (where work.queue_id is null)
    + pg_catalog.count(distinct work.queue_id)
from (
  (
    select jobs.job_queue_id as queue_id
    from :schema._private_jobs as jobs
    -- Not "is not null": then the index gwpy_locked_jobs would lead to every page.
    where jobs.locked_at >= '-infinity'::timestamptz
      and ($1::text[] is null or jobs.task_id in (select id from chosen_tasks))
    limit $2::int
  )
  union all
  (
    select null::int
    from free_lanes as lane
    cross join lateral (
      select
      from :schema._private_jobs as jobs
      where jobs.is_available = true
        and jobs.job_queue_id is null
        and jobs.task_id = lane.task_id
        and jobs.priority = lane.priority
        and jobs.run_at <= pg_catalog.now() + interval '30 seconds'
      order by jobs.run_at
      limit $2::int
    ) as job
    where lane.run_at <= pg_catalog.now() + interval '30 seconds'
      and lane.task_id not in (select id from paused_tasks)
    limit $2::int
  )
  union all
  (
    select queues.id
    from queues
    where (
        select job_queues.is_available
        from :schema._private_job_queues as job_queues
        where job_queues.id = queues.id
      )
      and case
        when $1::text[] is null
          and not exists (select from paused_tasks)
          and queues.run_at <= pg_catalog.now() + interval '30 seconds'
          then true
        else (
          select true
          from :schema._private_jobs as jobs
          where jobs.is_available = true
            and jobs.job_queue_id = queues.id
            and jobs.run_at <= pg_catalog.now() + interval '30 seconds'
            and ($1::text[] is null or jobs.task_id in (select id from chosen_tasks))
            and jobs.task_id not in (select id from paused_tasks)
          order by jobs.job_queue_id, jobs.priority, jobs.run_at
          limit 1
        )
      end
    limit $2::int
  )
) as work;
