-- Delete completed jobs $1 that pool $2 still has locked, unlock its named queues $3, and keep the
-- outcomes in the JSON array $5. Returns the ids of these jobs.
with kept as (
  :kept_runs
), finished as (
  delete from :schema._private_jobs as jobs
  where jobs.id = any ($1::text::bigint[])
    and jobs.locked_by = $2::text
  returning jobs.id, jobs.created_at, jobs.run_at, jobs.payload, jobs.priority
), unlocked_queues as (
  update :schema._private_job_queues as job_queues
  set locked_by = null,
      locked_at = null
  where job_queues.id = any ($3::int[])
    and job_queues.locked_by = $2::text
    -- In a retry ($4), the first attempt may have unlocked it, and this pool may have locked it again.
    and (not $4::boolean or exists (select from finished))
), outcomes as (
  insert into :ext_schema.outcomes (
    slot, job_id, task_identifier, succeeded, attempts, created_at, run_at, started_at, finished_at,
    expires_at, pool_id, has_result, result, payload, priority
  )
  select
    history.slot,
    finished.id,
    kept.task,
    true,
    -- Not that of the row: adding a job with the same key sets it to the maximum.
    kept.attempt,
    finished.created_at,
    finished.run_at,
    kept.started_at,
    kept.finished_at,
    kept.expires_at,
    $2::text,
    kept.has_result,
    case when kept.has_result then coalesce(kept.result, 'null'::json) end,
    case when kept.has_payload then finished.payload end,
    case when kept.has_payload then finished.priority end
  from finished
  join kept on kept.id = finished.id
  cross join :ext_schema.history as history
  where history.name = 'outcomes'
), attempts as (
  insert into :ext_schema.attempts (
    slot, job_id, attempt, started_at, duration, expires_at, pool_id
  )
  select
    history.slot,
    finished.id,
    kept.attempt,
    kept.started_at,
    extract(epoch from kept.finished_at - kept.started_at),
    kept.expires_at,
    $2::text
  from finished
  join kept on kept.id = finished.id
  cross join :ext_schema.history as history
  where history.name = 'outcomes'
    and kept.has_attempt
)
select id from finished;
