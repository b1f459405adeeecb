-- Return those of tasks $1 that may have a job which is ready at time $2 or now.
--
-- Reads the first entry of each task and priority in the indexes gwpy_free_jobs and
-- gwpy_queued_jobs, at any number of jobs. A task that is missing in the answer has no ready job. A
-- task is returned too if all its due jobs are of busy queues, or after $3 priorities.
--
-- For the planner, a task is a range, and the order begins with it. With an equality it would read
-- the jobs of all tasks by the index of the shared schema.
with recursive free_lanes as (
  select task.id as task_id, job.priority, job.run_at, 1 as position
  from pg_catalog.unnest($1::int[]) as task (id)
  cross join lateral (
    select jobs.priority, jobs.run_at
    from :schema._private_jobs as jobs
    where jobs.is_available = true
      and jobs.job_queue_id is null
      and jobs.task_id >= task.id
      and jobs.task_id <= task.id
    order by jobs.task_id, jobs.priority, jobs.run_at
    limit 1
  ) as job
  union all
  select before.task_id, job.priority, job.run_at, before.position + 1
  from free_lanes as before
  cross join lateral (
    select jobs.priority, jobs.run_at
    from :schema._private_jobs as jobs
    where jobs.is_available = true
      and jobs.job_queue_id is null
      and row(jobs.task_id, jobs.priority) > row(before.task_id, before.priority)
      and jobs.task_id <= before.task_id
    order by jobs.task_id, jobs.priority, jobs.run_at
    limit 1
  ) as job
  where before.position < $3::int
    and before.run_at > coalesce($2::text::timestamptz, pg_catalog.now())
), queued_lanes as (
  select task.id as task_id, job.priority, job.run_at, 1 as position
  from pg_catalog.unnest($1::int[]) as task (id)
  cross join lateral (
    select jobs.priority, jobs.run_at
    from :schema._private_jobs as jobs
    where jobs.is_available = true
      and jobs.job_queue_id is not null
      and jobs.task_id >= task.id
      and jobs.task_id <= task.id
    order by jobs.task_id, jobs.priority, jobs.run_at
    limit 1
  ) as job
  union all
  select before.task_id, job.priority, job.run_at, before.position + 1
  from queued_lanes as before
  cross join lateral (
    select jobs.priority, jobs.run_at
    from :schema._private_jobs as jobs
    where jobs.is_available = true
      and jobs.job_queue_id is not null
      and row(jobs.task_id, jobs.priority) > row(before.task_id, before.priority)
      and jobs.task_id <= before.task_id
    order by jobs.task_id, jobs.priority, jobs.run_at
    limit 1
  ) as job
  where before.position < $3::int
    and before.run_at > coalesce($2::text::timestamptz, pg_catalog.now())
)
select free_lanes.task_id
from free_lanes
where free_lanes.run_at <= coalesce($2::text::timestamptz, pg_catalog.now())
  or free_lanes.position = $3::int
union
select queued_lanes.task_id
from queued_lanes
where queued_lanes.run_at <= coalesce($2::text::timestamptz, pg_catalog.now())
  or queued_lanes.position = $3::int;
