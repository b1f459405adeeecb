-- Add the job of the arrays $1 to $8 with the key $10, unless a job has the key: then only its
-- revision grows, even while it runs. The effect is that of add_job with unsafe_dedupe, but workers
-- are not notified. It adds nothing if $9 is not valid or if a name is new.
with :lock_names, :keyed_jobs, added as (
  insert into :schema._private_jobs as jobs
    (job_queue_id, task_id, payload, run_at, max_attempts, priority, flags, key)
  select
    :new_job_columns,
    keys.job_key
  from spec
  left join keys using (position)
  cross join found
  where found.can_add
  on conflict (key) do update
  set
    revision = jobs.revision + 1,
    updated_at = pg_catalog.now()
  returning :stored_columns
)
:added_jobs;
