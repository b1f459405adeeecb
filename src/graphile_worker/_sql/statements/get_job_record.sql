-- Return what is known of job $1 in one row: of its row, of its newest outcome, and its attempts as
-- a JSON array, oldest first. Needs the privilege to read payloads and results.
with job as (
  select
    jobs.payload,
    jobs.priority,
    jobs.run_at,
    jobs.attempts,
    jobs.attempts >= jobs.max_attempts as has_no_attempts,
    jobs.last_error,
    jobs.created_at,
    jobs.locked_at,
    jobs.locked_by,
    -- Workers for Node set run_at to a later time, also if a job does not run again.
    greatest(jobs.updated_at, least(jobs.run_at, pg_catalog.now())) as changed_at,
    tasks.identifier
  from :schema._private_jobs as jobs
  left join :schema._private_tasks as tasks on tasks.id = jobs.task_id
  where jobs.id = $1::bigint
), outcome as (
  select
    outcomes.task_identifier,
    outcomes.payload,
    outcomes.priority,
    outcomes.created_at,
    outcomes.run_at,
    outcomes.attempts,
    outcomes.succeeded,
    outcomes.started_at,
    outcomes.finished_at,
    outcomes.pool_id,
    outcomes.result,
    outcomes.error,
    outcomes.error_class
  from :ext_schema.outcomes as outcomes
  where outcomes.job_id = $1::bigint
    and (outcomes.expires_at is null or outcomes.expires_at > pg_catalog.now())
  order by outcomes.finished_at desc
  limit 1
), runs as (
  select
    pg_catalog.json_agg(
      pg_catalog.json_build_array(
        attempts.attempt,
        extract(epoch from attempts.started_at)::text,
        attempts.duration::float8,
        attempts.pool_id,
        attempts.error,
        attempts.error_class
      )
      order by attempts.started_at, attempts.attempt
    ) as list
  from :ext_schema.attempts as attempts
  where attempts.job_id = $1::bigint
    and (attempts.expires_at is null or attempts.expires_at > pg_catalog.now())
)
select
  job.identifier,
  job.payload::text,
  job.priority,
  job.has_no_attempts,
  job.last_error,
  job.attempts,
  extract(epoch from job.created_at)::text,
  extract(epoch from job.run_at)::text,
  extract(epoch from job.locked_at)::text,
  job.locked_by,
  extract(epoch from job.changed_at)::text,
  outcome.task_identifier,
  outcome.payload::text,
  outcome.priority,
  outcome.succeeded,
  outcome.error,
  outcome.error_class,
  outcome.attempts,
  extract(epoch from outcome.created_at)::text,
  extract(epoch from outcome.run_at)::text,
  extract(epoch from outcome.started_at)::text,
  extract(epoch from outcome.finished_at)::text,
  outcome.pool_id,
  outcome.result::text,
  runs.list::text
from runs
left join job on true
left join outcome on true;
