-- Release all that others than pool $2, which lives, have locked for more than four hours at time $1
-- or now; how many jobs.
with freed as (
  update :schema._private_job_queues as job_queues
  set locked_by = null,
      locked_at = null
  where job_queues.locked_at < coalesce($1::text::timestamptz, now()) - interval '4 hours'
    and job_queues.locked_by is distinct from $2::text
), unlocked as (
  update :schema._private_jobs as jobs
  set locked_by = null,
      locked_at = null,
      -- Behind what is ready by now.
      run_at = greatest(jobs.run_at, coalesce($1::text::timestamptz, now()))
  where jobs.locked_at < coalesce($1::text::timestamptz, now()) - interval '4 hours'
    and jobs.locked_by is distinct from $2::text
  returning jobs.id
)
select count(*) from unlocked;
