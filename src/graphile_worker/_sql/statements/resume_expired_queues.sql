-- Unlock the named queues whose pause has ended, delete the rows of pauses that have ended, and wake
-- workers in every language. Returns the kinds and names of the ended pauses. Rows that another
-- session has locked are left to the next call, and so are queues with a locked job.
with expired as (
  select pauses.kind, pauses.name, pauses.paused_by
  from :ext_schema.pauses as pauses
  where pauses.until <= pg_catalog.now()
  for update skip locked
), paused as (
  select job_queues.id, job_queues.queue_name
  from :schema._private_job_queues as job_queues
  join expired on expired.kind = 'queue' and expired.name = job_queues.queue_name
  where job_queues.locked_at is not null
    -- Another lock than that of this pause stays.
    and job_queues.locked_by = pg_catalog.concat('paused:', expired.paused_by)
), resumable as (
  select job_queues.id
  from :schema._private_job_queues as job_queues
  where job_queues.id = any (array(select paused.id from paused))
    and not exists (
      select
      from :schema._private_jobs as jobs
      where jobs.locked_at > '-infinity'::timestamptz
        and jobs.job_queue_id = job_queues.id
    )
  for no key update skip locked
), resumed as (
  update :schema._private_job_queues as job_queues
  set locked_by = null,
      locked_at = null
  where job_queues.id = any (array(select resumable.id from resumable))
  returning job_queues.queue_name
), deleted as (
  delete from :ext_schema.pauses as pauses
  using expired
  where pauses.kind = expired.kind
    and pauses.name = expired.name
    and (
      pauses.kind = 'task'
      or pauses.name = any (array(select resumed.queue_name from resumed))
      or pauses.name <> all (array(select paused.queue_name from paused))
    )
  returning pauses.kind, pauses.name
)
select
  deleted.kind,
  deleted.name,
  pg_catalog.pg_notify(
    'jobs:insert',
    pg_catalog.json_build_object('r', pg_catalog.random(), 'count', 1)::text
  )
from deleted;
