-- Delete progress whose pool no longer holds the job, because its process died.
with orphaned as (
  select
    progress.job_id,
    progress.pool_id
  from :ext_schema.progress as progress
  where not exists (
    select
    from :schema._private_jobs as jobs
    where jobs.id = progress.job_id
      and jobs.locked_by = progress.pool_id
  )
)
-- By both columns: another pool may write its progress of the same job meanwhile.
delete from :ext_schema.progress as progress
using orphaned
where progress.job_id = orphaned.job_id
  and progress.pool_id = orphaned.pool_id;
