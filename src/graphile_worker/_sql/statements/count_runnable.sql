-- Count the jobs that run or could run, of tasks $1, or of all tasks if $1 is null, while tasks $3
-- are paused. The number of jobs that all workers together need to run at once: scale by it.
--
-- The sum of
-- 1. locked jobs without a named queue,
-- 2. available jobs without a named queue, if their run_at is at most 30 s in the future,
-- 3. named queues, each counted once for any number of jobs, that have a locked job, or that are not
--    locked and have an available job whose run_at is at most 30 s in the future.
--
-- An available job is not locked, has attempts left, and its task is not paused. So these do not
-- count: a queue that is locked without a locked job, for example a paused one; a job whose queue has
-- no row, which no worker can claim; a permanently failed job. With $1, only jobs of these tasks
-- count, also in 3.
-- Each of the three searches stops at $2 rows.
--
-- For every schema. With the indexes gwpy_…, count_runnable_indexed gives the same number.
select
  pg_catalog.count(*) filter (where work.queue_id is null)
    + pg_catalog.count(distinct work.queue_id)
from (
  (
    select jobs.job_queue_id as queue_id
    from :schema._private_jobs as jobs
    -- Not "is not null": then the index gwpy_locked_jobs would lead to every page.
    where jobs.locked_at >= '-infinity'::timestamptz
      and (
        $1::text[] is null
        or jobs.task_id in (
          select tasks.id from :schema._private_tasks as tasks where tasks.identifier = any ($1::text[])
        )
      )
    limit $2::int
  )
  union all
  (
    select jobs.job_queue_id
    from :schema._private_jobs as jobs
    where jobs.is_available = true
      and jobs.job_queue_id is null
      and jobs.run_at <= pg_catalog.now() + interval '30 seconds'
      and jobs.task_id not in (
        select tasks.id from :schema._private_tasks as tasks where tasks.identifier = any ($3::text[])
      )
      and (
        $1::text[] is null
        or jobs.task_id in (
          select tasks.id from :schema._private_tasks as tasks where tasks.identifier = any ($1::text[])
        )
      )
    limit $2::int
  )
  union all
  (
    select distinct jobs.job_queue_id
    from :schema._private_jobs as jobs
    join :schema._private_job_queues as job_queues on job_queues.id = jobs.job_queue_id
    where jobs.is_available = true
      and job_queues.is_available = true
      and jobs.run_at <= pg_catalog.now() + interval '30 seconds'
      and jobs.task_id not in (
        select tasks.id from :schema._private_tasks as tasks where tasks.identifier = any ($3::text[])
      )
      and (
        $1::text[] is null
        or jobs.task_id in (
          select tasks.id from :schema._private_tasks as tasks where tasks.identifier = any ($1::text[])
        )
      )
    limit $2::int
  )
) as work;
