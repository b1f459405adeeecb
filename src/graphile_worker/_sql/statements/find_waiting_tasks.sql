-- Return tasks with waiting jobs: the tasks of the soonest jobs that a claim of up to $1 reads,
-- from priority $3 and run_at $4 on, if they are ready at time $2 or now, and of all tasks the next
-- $6 after id $5.
--
-- For a worker with more tasks than a claim can list. The indexes gwpy_free_jobs and
-- gwpy_queued_jobs lead from one task to the next, at any number of jobs per task.
with recursive soonest as (
  select distinct job.task_id
  from (
    select jobs.task_id, jobs.run_at
    from :schema._private_jobs as jobs
    where jobs.is_available = true
      and row(jobs.priority, jobs.run_at) >= row(
        coalesce($3::int, -32768),
        coalesce($4::text::timestamptz, '-infinity')
      )
    order by jobs.priority, jobs.run_at
    limit least($1::int, 2000) * 5 / 4 + 20
  ) as job
  where job.run_at <= coalesce($2::text::timestamptz, pg_catalog.now())
), waiting as (
  select $5::int as task_id
  union all
  select least(
    (
      select jobs.task_id
      from :schema._private_jobs as jobs
      where jobs.is_available = true
        and jobs.job_queue_id is null
        and jobs.task_id > before.task_id
      order by jobs.task_id
      limit 1
    ),
    (
      select jobs.task_id
      from :schema._private_jobs as jobs
      where jobs.is_available = true
        and jobs.job_queue_id is not null
        and jobs.task_id > before.task_id
      order by jobs.task_id
      limit 1
    )
  )
  from waiting as before
  where before.task_id is not null
), next_tasks as (
  select waiting.task_id
  from waiting
  where waiting.task_id > $5::int
  limit $6::int
)
select
  found.task_id,
  (
    select tasks.identifier
    from :schema._private_tasks as tasks
    where tasks.id = found.task_id
  ),
  found.is_next
from (
  select soonest.task_id, false as is_next
  from soonest
  union all
  select next_tasks.task_id, true
  from next_tasks
) as found;
