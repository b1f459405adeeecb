-- The jobs to claim: those that were locked together, or others if there were none.
one_by_one as (
  -- Other workers have locked all of those: try the other candidates, until there are enough.
  select id, job_queue_id
  from (
    select job.id, job.job_queue_id
    from candidates as job
    where (select not exists (select from locked_candidates))
      and :lock_job
    limit 200
  ) as job
  limit (select max_jobs from params)
), remaining_jobs as (
  -- Other workers have locked every candidate: read all jobs, also those after the first job of a
  -- queue. One priority at a time, so that future jobs are not read: see claim_plain_jobs.
  select job.id, job.job_queue_id, job.priority, job.run_at
  from pg_catalog.unnest(array(
    select priority
    from priorities
    where priority is not null
      and (
        select not exists (select from locked_candidates)
          and exists (select from candidates)
          and not exists (select from one_by_one)
      )
  )) as line (priority)
  cross join lateral (
    select job.id, job.job_queue_id, job.priority, job.run_at
    from (
      select jobs.id, jobs.job_queue_id, jobs.priority, jobs.run_at
      from :schema._private_jobs as jobs
      where jobs.is_available = true
        and jobs.priority = line.priority
        and jobs.run_at <= (select claim_time from params)
        and jobs.task_id = any ((select tasks from params)::int[])
        and (jobs.flags ?| (select flags from params)) is not true
      order by jobs.run_at
      offset 0
    ) as job
    where :lock_job
    limit 200
  ) as job
  limit (select max_jobs from params)
), jobs_to_claim as (
  select id, job_queue_id
  from locked_candidates
  union all
  select id, job_queue_id
  from one_by_one
  union all
  (
    select distinct on (coalesce(-job_queue_id, id)) id, job_queue_id
    from remaining_jobs
    order by coalesce(-job_queue_id, id), priority, run_at, id
  )
)
