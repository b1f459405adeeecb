-- Return whether a job of tasks $1 without the flags $2 may be ready at time $3 or now, and whether
-- there are so few jobs that claim_soonest_jobs reads all of them.
--
-- False is exact. If many jobs are due, or there are many priorities, the answer is true, and
-- claim_jobs finds out. It costs a twentieth of claim_jobs, at any number of future jobs, and reads
-- a snapshot that is at least as new: a job that was committed before the call is seen.
with recursive :priorities,
some_priorities as (
  select priority
  from priorities
  where priority is not null
  limit 20
), due as (
  select job.id, job.task_id, job.job_queue_id
  from pg_catalog.unnest(array(select priority from some_priorities)) as line (priority)
  cross join lateral (
    select jobs.id, jobs.task_id, jobs.job_queue_id
    from :schema._private_jobs as jobs
    where jobs.is_available = true
      and jobs.priority = line.priority
      and jobs.run_at <= coalesce($3::text::timestamptz, pg_catalog.now())
    order by jobs.run_at
    limit 50
  ) as job
  limit 50
)
select
  (select pg_catalog.count(*) from some_priorities) = 20
  or pg_catalog.count(*) = 50
  or coalesce(
    pg_catalog.bool_or(
      due.task_id = any ($1::int[])
      and case
        when due.job_queue_id is null then true
        else (
          select job_queues.is_available
          from :schema._private_job_queues as job_queues
          where job_queues.id = due.job_queue_id
        )
      end
      and ($2::text[] is null or (
        select (jobs.flags ?| $2::text[]) is not true
        from :schema._private_jobs as jobs
        where jobs.id = due.id
      ))
    ),
    false
  ),
  -- Compare with claim_params.
  (
    select pg_catalog.count(*)
    from (
      select
      from :schema._private_jobs as jobs
      where jobs.is_available = true
      limit 21
    ) as job
  ) < 21
from due;
