-- Return the progress of jobs $1, if the pool that reported it still has the job locked.
select
  progress.job_id,
  progress.fraction::float8,
  progress.message,
  extract(epoch from progress.updated_at)::text
from :ext_schema.progress as progress
join :schema._private_jobs as jobs
  on jobs.id = progress.job_id
  and jobs.locked_by = progress.pool_id
where progress.job_id = any ($1::bigint[]);
