-- Add the jobs of the arrays $1 to $8 with the keys $10, and keep the time of waiting jobs with the
-- keys $11. The effect is that of add_jobs, but workers are not notified. A key whose job another
-- session had locked has no row. If $12 rows are expected and there are fewer, the statement fails
-- with a division by zero. It adds nothing if $9 is not valid or if a name is new.
with :lock_names, :keyed_jobs, to_release as materialized (
  select jobs.id
  from keys
  cross join found
  inner join :schema._private_jobs as jobs on jobs.key = keys.job_key
  where found.can_add
    and jobs.is_available is not true
  -- Keys in one order in every session: opposite orders would deadlock.
  order by keys.job_key
  for update of jobs
), released as (
  -- Jobs that run or failed permanently lose their keys to the new jobs. A unique index ignores rows
  -- that its own transaction has replaced, so the insert below does not conflict with them.
  update :schema._private_jobs as jobs
  set
    key = null,
    attempts = jobs.max_attempts,
    updated_at = pg_catalog.now()
  -- The conditions still hold, because the rows are locked.
  where jobs.id = any (array(select to_release.id from to_release))
  returning jobs.id
), added as (
  insert into :schema._private_jobs as jobs
    (job_queue_id, task_id, payload, run_at, max_attempts, priority, flags, key)
  select
    :new_job_columns,
    keys.job_key
  from spec
  left join keys using (position)
  cross join found
  where found.can_add
    -- After all keys are released.
    and (select pg_catalog.count(*) from released) >= 0
  -- In the same order.
  order by keys.job_key nulls first, spec.position
  on conflict (key) do update
  set
    revision = jobs.revision + 1,
    task_id = excluded.task_id,
    job_queue_id = excluded.job_queue_id,
    priority = excluded.priority,
    max_attempts = excluded.max_attempts,
    flags = excluded.flags,
    attempts = 0,
    last_error = null,
    updated_at = pg_catalog.now(),
    run_at = case
      when jobs.attempts > 0 or excluded.key <> all (coalesce($11::text::text[], '{}'::text[]))
        then excluded.run_at
      else jobs.run_at
    end,
    -- Two arrays are appended. Any other payload is replaced.
    payload = case
      when pg_catalog.json_typeof(jobs.payload) = 'array'::text
        and pg_catalog.json_typeof(excluded.payload) = 'array'::text
        then (jobs.payload::jsonb || excluded.payload::jsonb)::json
      else excluded.payload
    end
  where jobs.locked_at is null
  returning :stored_columns
)
:added_jobs
where 1 / case
  when $12::int is null then 1
  when not found.can_add then 1
  when (select pg_catalog.count(*) from added) = $12::int then 1
  else 0
end = 1;
