-- Delete the outcomes, attempts and progress of jobs with ids up to $1.
with deleted_outcomes as (
  delete from :ext_schema.outcomes as outcomes
  where outcomes.job_id <= $1::bigint
), deleted_attempts as (
  delete from :ext_schema.attempts as attempts
  where attempts.job_id <= $1::bigint
)
delete from :ext_schema.progress as progress
where progress.job_id <= $1::bigint;
