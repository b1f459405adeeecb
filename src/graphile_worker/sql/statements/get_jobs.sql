-- Take up to $4 ready jobs of tasks $2 for pool $1, none that has a flag of $3, at time $5 or now.
with ready as not materialized (
  select jobs.id, jobs.task_id, jobs.job_queue_id, jobs.priority, jobs.run_at, jobs.flags
  from :schema._private_jobs as jobs
  where jobs.is_available = true
    and jobs.run_at <= coalesce($5::text::timestamptz, now())
    and jobs.task_id = any ($2::int[])
    and ($3::text[] is null or (jobs.flags ?| $3::text[]) is not true)
), hundred as (
  -- Jobs of one transaction share their run_at: of a hundred such the smallest id goes first. Not of
  -- all, or each fetch would sort the whole of a large transaction.
  select id, task_id, job_queue_id, priority, run_at, flags
  from (
    select id, task_id, job_queue_id, priority, run_at, flags
    from ready
    order by priority, run_at
    limit 100
  ) as unsorted
  order by priority, run_at, id
), candidates as (
  select job.id, job.job_queue_id, job.priority, job.run_at
  from (
    select id, task_id, job_queue_id, priority, run_at, flags
    from hundred
    union all
    (
      select id, task_id, job_queue_id, priority, run_at, flags
      from ready
      order by priority, run_at
      offset 100
    )
  ) as job
  -- In that order and until there are enough, so that nothing else is locked: whoever fetches at the
  -- same time finds all other jobs and queues. What has changed since it was found is left alone.
  where case
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
        and jobs.is_available = true
        and row(jobs.task_id, jobs.job_queue_id, jobs.priority, jobs.run_at, jobs.flags)
          is not distinct from row(job.task_id, job.job_queue_id, job.priority, job.run_at, job.flags)
      for update skip locked
    )
    else false
  end
  limit $4::int
), heads as (
  -- One job of a named queue at a time.
  select distinct on (coalesce(job_queue_id::text, 'free ' || id)) id, job_queue_id
  from candidates
  order by coalesce(job_queue_id::text, 'free ' || id), priority, run_at, id
), locked as (
  update :schema._private_job_queues as job_queues
  set locked_by = $1::text,
      locked_at = coalesce($5::text::timestamptz, now())
  where job_queues.id = any (array(select job_queue_id from heads where job_queue_id is not null))
), jobs as (
  update :schema._private_jobs as jobs
  set attempts = jobs.attempts + 1,
      locked_by = $1::text,
      locked_at = coalesce($5::text::timestamptz, now())
  -- An array, not a join: with the statistics of an empty table a join reads the whole primary key.
  where jobs.id = any (array(select id from heads))
  returning
    jobs.id,
    jobs.task_id,
    jobs.job_queue_id,
    jobs.payload,
    jobs.priority,
    jobs.run_at,
    jobs.attempts,
    jobs.max_attempts,
    jobs.last_error,
    jobs.created_at,
    jobs.updated_at,
    jobs.key,
    jobs.locked_at,
    jobs.locked_by,
    jobs.revision,
    jobs.flags
)
select
  jobs.id,
  jobs.task_id,
  job_queues.queue_name,
  :job_columns,
  jobs.job_queue_id
from jobs
left join :schema._private_job_queues as job_queues on job_queues.id = jobs.job_queue_id
order by jobs.priority, jobs.run_at, jobs.id;
