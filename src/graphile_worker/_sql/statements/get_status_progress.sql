-- Return the progress of job $1 that pool $2 reported.
select
  progress.fraction::float8,
  progress.message,
  extract(epoch from progress.updated_at)::text
from :ext_schema.progress as progress
where progress.job_id = $1::bigint
  and progress.pool_id = $2::text;
