-- Claim jobs like claim_soonest_jobs, of the soonest jobs and of those around position $6, $7.
--
-- For tables in which thousands of jobs that cannot be claimed precede the others: claim_jobs found
-- its first job behind them at the position. The jobs directly before it are read too, because new
-- jobs may be there. Other jobs are not read, so around the position only the first job of a named
-- queue is claimed: the jobs of a queue run in order. An empty result does not mean that no job is
-- ready: run claim_jobs then. The steps have the form of claim_jobs for the same reasons, and need
-- the index gwpy_jobs_of_queues.
with :claim_params,
first_jobs as (
  select id, task_id, job_queue_id, priority, run_at, is_allowed
  from (
    select :soonest_columns
    from :schema._private_jobs as jobs
    where jobs.is_available = true
    order by jobs.priority, jobs.run_at
    limit 2550
  ) as job
  limit (select few from params)
), first_jobs_end as materialized (
  -- Once, not for each candidate. Without a row, these are all jobs.
  select priority, run_at
  from first_jobs
  offset (select few - 1 from params)
  limit 1
), soonest as (
  select id, task_id, job_queue_id, priority, run_at, is_allowed
  from first_jobs
  union
  (
    select id, task_id, job_queue_id, priority, run_at, is_allowed
    from (
      select :soonest_columns
      from :schema._private_jobs as jobs
      where jobs.is_available = true
        and row(jobs.priority, jobs.run_at) < row($6::int, $7::text::timestamptz)
      order by jobs.priority desc, jobs.run_at desc
      limit 2550
    ) as before
    limit (select few from params)
  )
  union
  (
    select id, task_id, job_queue_id, priority, run_at, is_allowed
    from (
      select :soonest_columns
      from :schema._private_jobs as jobs
      where jobs.is_available = true
        and row(jobs.priority, jobs.run_at) >= row($6::int, $7::text::timestamptz)
      order by jobs.priority, jobs.run_at
      limit 2550
    ) as after
    limit (select enough from params)
  )
),
:soonest_candidates,
candidates as (
  select near.id, near.job_queue_id
  from near
  where case
    when near.job_queue_id is null then true
    when (
      select row(near.priority, near.run_at) >= row(read.priority, read.run_at)
      from first_jobs_end as read
    ) is not true then true
    else near.id = (
      select jobs.id
      from :schema._private_jobs as jobs
      where jobs.is_available = true
        and jobs.job_queue_id = near.job_queue_id
      order by jobs.priority, jobs.run_at, jobs.id
      limit 1
    )
  end
),
:lock_jobs,
jobs_to_claim as (
  select id, job_queue_id
  from locked_candidates
),
:claim_locked_jobs;
