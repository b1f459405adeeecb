-- Lock named queue $1 for $2, or for this role if that is null, unless a worker has locked it.
-- Returns who paused it, or no row. The time is that of a pause: it never becomes stale for workers
-- in any language. It is not infinite, because some drivers cannot read that.
with free as (
  select job_queues.id
  from :schema._private_job_queues as job_queues
  where job_queues.queue_name = $1::text
    and (
      job_queues.locked_at is null
      or pg_catalog.starts_with(job_queues.locked_by, 'paused:')
    )
  for no key update skip locked
)
update :schema._private_job_queues as job_queues
set locked_at = '9999-01-01 00:00:00+00'::timestamptz,
    locked_by = pg_catalog.concat('paused:', coalesce($2::text, session_user))
where job_queues.id = any (array(select free.id from free))
returning pg_catalog.substr(job_queues.locked_by, 8);
