-- Delete rescued pools after another lease, if they have no locks left. Returns the pools that
-- have.
with left_over as (
  select jobs.locked_by
  from :schema._private_jobs as jobs
  join :ext_schema.pools as pools on pools.id = jobs.locked_by
  where pools.swept_at is not null
  union
  select job_queues.locked_by
  from :schema._private_job_queues as job_queues
  join :ext_schema.pools as pools on pools.id = job_queues.locked_by
  where pools.swept_at is not null
), forgotten as (
  delete from :ext_schema.pools as pools
  where pools.swept_at < pg_catalog.now() - pools.lease
    and not exists (select from left_over where left_over.locked_by = pools.id)
)
select left_over.locked_by
from left_over;
