-- The jobs that would run first, for a claim: see claim_jobs.
soonest as (
  -- Of all tasks, and even if they are not due.
  select id, task_id, job_queue_id, priority, run_at, is_allowed
  from (
    select :soonest_columns
    from :schema._private_jobs as jobs
    where jobs.is_available = true
      -- The planner does not use these values.
      and row(jobs.priority, jobs.run_at) >= row(
        coalesce($6::int, -32768),
        coalesce($7::text::timestamptz, '-infinity')
      )
    order by jobs.priority, jobs.run_at
    limit 2550
  ) as job
  limit (select enough from params)
)
