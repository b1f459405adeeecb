-- Delete rescued pools after another lease, if they have no locks left. Returns the pools that
-- still have locks.
with remaining_locks as (
  select jobs.locked_by
  from :schema._private_jobs as jobs
  join :ext_schema.pools as pools on pools.id = jobs.locked_by
  where pools.swept_at is not null
  union
  select job_queues.locked_by
  from :schema._private_job_queues as job_queues
  join :ext_schema.pools as pools on pools.id = job_queues.locked_by
  where pools.swept_at is not null
), deleted_pools as (
  delete from :ext_schema.pools as pools
  where pools.swept_at < pg_catalog.now() - pools.lease
    and not exists (select from remaining_locks where remaining_locks.locked_by = pools.id)
)
select remaining_locks.locked_by
from remaining_locks;
