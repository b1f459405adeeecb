-- Lock the first candidates together, and check again what may have changed.
best as (
  select id, job_queue_id
  from candidates
  limit (select max_jobs from params)
), locked_queues as (
  select job_queues.id
  from :schema._private_job_queues as job_queues
  where job_queues.id = any (array(select job_queue_id from best where job_queue_id is not null))
    and job_queues.is_available = true
  for update skip locked
), locked_jobs as (
  select jobs.id, jobs.job_queue_id
  from :schema._private_jobs as jobs
  -- An array, not a join: with the statistics of an empty table a join reads the whole primary key.
  -- "is not false" instead of "= true": with the same statistics an index of available jobs would
  -- seem better than the primary key.
  where jobs.id = any (array(
      -- In a case, so that the queues are hashed: the planner expects one row and would join them by
      -- a loop, which takes the square of their number.
      select id
      from best
      where case
        when job_queue_id is null then true
        else job_queue_id in (select locked_queues.id from locked_queues)
      end
    ))
    and jobs.is_available is not false
    and jobs.run_at <= (select claim_time from params)
    and jobs.task_id = any ((select tasks from params)::int[])
    and (jobs.flags ?| (select flags from params)) is not true
  for update skip locked
), locked_candidates as (
  -- A job that has another queue since it was found is skipped.
  select locked_jobs.id, locked_jobs.job_queue_id
  from locked_jobs
  join best on best.id = locked_jobs.id
  where best.job_queue_id is not distinct from locked_jobs.job_queue_id
)
