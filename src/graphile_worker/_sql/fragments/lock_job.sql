-- Lock this job and its queue if both can be claimed.
case
  when job.job_queue_id is null or exists (
    select
    from :schema._private_job_queues as job_queues
    where job_queues.id = job.job_queue_id
      and job_queues.is_available = true
    for update skip locked
  ) then exists (
    select
    from :schema._private_jobs as jobs
    where jobs.id = job.id
      and jobs.is_available is not false
      and jobs.run_at <= (select claim_time from params)
      and jobs.task_id = any ((select tasks from params)::int[])
      and (jobs.flags ?| (select flags from params)) is not true
      and jobs.job_queue_id is not distinct from job.job_queue_id
    for update skip locked
  )
  else false
end
