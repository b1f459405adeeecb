-- Record the failures in the JSON array $1 of jobs that pool $2 still has locked, unlock its named
-- queues $3, and keep the runs in the JSON array $5: attempts, and an outcome if no attempts are
-- left. Returns the ids of these jobs.
with kept as (
  :kept_runs
), due as (
  -- The update replaces the time at which a job was due.
  select jobs.id, jobs.run_at
  from :schema._private_jobs as jobs
  where jobs.id = any (array(select id from kept))
), failures as (
  select
    failure.id,
    failure.attempts,
    failure.message,
    failure.run_at,
    failure.delay,
    failure.give_up,
    failure.payload,
    failure.error_class
  from pg_catalog.json_to_recordset($1::text::json) as failure (
    id bigint,
    attempts int,
    message text,
    run_at timestamptz,
    delay bigint,
    give_up boolean,
    payload text,
    error_class text
  )
), failed as (
  update :schema._private_jobs as jobs
  set last_error = failures.message,
      run_at = case
        -- It does not run again, so this is when it failed.
        when failures.give_up or jobs.attempts >= jobs.max_attempts then pg_catalog.now()
        else coalesce(
          failures.run_at,
          pg_catalog.now() + failures.delay::float8 * interval '1 microsecond',
          greatest(pg_catalog.now(), jobs.run_at)
          + pg_catalog.exp(least(jobs.attempts, 10)) * interval '1 second'
        )
      end,
      attempts = case when failures.give_up then jobs.max_attempts else jobs.attempts end,
      payload = coalesce(failures.payload::json, jobs.payload),
      locked_by = null,
      locked_at = null
  from failures
  where jobs.id = failures.id
    -- An array beside the join, for the planner: see claim_jobs.
    and jobs.id = any (array(select id from failures))
    and jobs.locked_by = $2::text
    -- In a retry ($4), the first attempt may have released it, and this pool may run its next
    -- attempt. A job that was superseded by its key since has no attempts left.
    and (
      not $4::boolean
      or jobs.attempts = failures.attempts
      or jobs.attempts >= jobs.max_attempts
    )
  returning
    jobs.id,
    failures.attempts as attempt,
    jobs.attempts,
    jobs.max_attempts,
    jobs.created_at,
    jobs.payload,
    jobs.priority,
    failures.message,
    failures.error_class
), unlocked_queues as (
  update :schema._private_job_queues as job_queues
  set locked_by = null,
      locked_at = null
  where job_queues.id = any ($3::int[])
    and job_queues.locked_by = $2::text
    -- In a retry, this pool may have locked it again for another job.
    and (not $4::boolean or exists (select from failed))
), outcomes as (
  insert into :ext_schema.outcomes (
    slot, job_id, task_identifier, succeeded, attempts, created_at, run_at, started_at, finished_at,
    expires_at, pool_id, payload, priority, error, error_class
  )
  select
    history.slot,
    failed.id,
    kept.task,
    false,
    failed.attempt,
    failed.created_at,
    due.run_at,
    kept.started_at,
    kept.finished_at,
    kept.expires_at,
    $2::text,
    case when kept.has_payload then failed.payload end,
    case when kept.has_payload then failed.priority end,
    failed.message,
    failed.error_class
  from failed
  join kept on kept.id = failed.id
  join due on due.id = failed.id
  cross join :ext_schema.history as history
  where history.name = 'outcomes'
    and failed.attempts >= failed.max_attempts
), attempts as (
  insert into :ext_schema.attempts (
    slot, job_id, attempt, started_at, duration, expires_at, pool_id, error, error_class
  )
  select
    history.slot,
    failed.id,
    failed.attempt,
    kept.started_at,
    extract(epoch from kept.finished_at - kept.started_at),
    kept.expires_at,
    $2::text,
    failed.message,
    failed.error_class
  from failed
  join kept on kept.id = failed.id
  cross join :ext_schema.history as history
  where history.name = 'outcomes'
    and kept.has_attempt
)
select id from failed;
