-- The soonest jobs that can be claimed, one of each named queue, in their order.
near as (
  -- Sorted, so that no more queues are read than needed.
  select job.id, job.job_queue_id, job.priority, job.run_at
  from (
    select id, job_queue_id, priority, run_at
    from soonest
    where run_at <= (select claim_time from params)
      and task_id = any ((select tasks from params)::int[])
      and is_allowed
    order by priority, run_at, id
    offset 0
  ) as job
  -- One job of a named queue at a time.
  where case
    when job.job_queue_id is null then true
    when job.id in (
      select distinct on (first.job_queue_id) first.id
      from soonest as first
      where first.job_queue_id is not null
        and first.run_at <= (select claim_time from params)
        and first.task_id = any ((select tasks from params)::int[])
        and first.is_allowed
      order by first.job_queue_id, first.priority, first.run_at, first.id
    ) then (
      select job_queues.is_available
      from :schema._private_job_queues as job_queues
      where job_queues.id = job.job_queue_id
    )
    else false
  end
)
