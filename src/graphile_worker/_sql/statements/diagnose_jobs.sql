-- One look at all jobs: those whose task or named queue is nowhere, and those that are locked, by holder.
select
  case when tasks.id is null then jobs.task_id end,
  case when job_queues.id is null then jobs.job_queue_id end,
  jobs.locked_by,
  pg_catalog.count(*),
  pg_catalog.count(*) filter (where jobs.locked_at < pg_catalog.now() - interval '4 hours'),
  pg_catalog.min(jobs.id),
  -- Somebody may have locked one for ever.
  extract(
    epoch from pg_catalog.now()
      - pg_catalog.min(jobs.locked_at) filter (where pg_catalog.isfinite(jobs.locked_at))
  )::float8
from :schema._private_jobs as jobs
left join :schema._private_tasks as tasks on tasks.id = jobs.task_id
left join :schema._private_job_queues as job_queues on job_queues.id = jobs.job_queue_id
where tasks.id is null
  or jobs.locked_at is not null
  or (jobs.job_queue_id is not null and job_queues.id is null)
group by 1, 2, 3
order by 4 desc
limit 1000;
