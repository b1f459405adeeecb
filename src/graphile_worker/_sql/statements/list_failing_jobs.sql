-- Return at most $3 jobs with an error, the newest first, from id $1 on and before id $2: those that
-- failed permanently, that wait for a retry, whose retry is due, or that run again. Of a long error,
-- only the start and the end.
select
  jobs.id,
  tasks.identifier,
  jobs.failures >= jobs.max_attempts,
  case
    when pg_catalog.char_length(jobs.last_error) <= 4000 then jobs.last_error
    else pg_catalog.left(jobs.last_error, 2000) || e'\n...\n' || pg_catalog.right(jobs.last_error, 2000)
  end,
  extract(epoch from jobs.run_at)::text,
  extract(epoch from jobs.updated_at)::text,
  jobs.failures
from (
  select
    jobs.id,
    jobs.task_id,
    jobs.last_error,
    jobs.run_at,
    jobs.updated_at,
    -- The attempt that runs is counted already. Without failures, the error is one from before a
    -- person retried the job.
    jobs.attempts - (jobs.locked_at is not null)::int as failures,
    jobs.max_attempts
  from :schema._private_jobs as jobs
  where jobs.id >= $1::bigint
    and jobs.id < $2::bigint
    and jobs.last_error is not null
    and jobs.attempts - (jobs.locked_at is not null)::int > 0
  order by jobs.id desc
  limit $3::int
) as jobs
left join :schema._private_tasks as tasks on tasks.id = jobs.task_id
order by jobs.id desc;
