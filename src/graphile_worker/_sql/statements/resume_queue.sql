-- Unlock named queue $1 if a person paused it, no job of it is locked and no other session changes
-- it. Returns whether it was paused, whether it is unlocked, and the id and the worker of a job that
-- prevents that.
with paused as (
  select job_queues.id
  from :schema._private_job_queues as job_queues
  where job_queues.queue_name = $1::text
    and job_queues.locked_at is not null
    and pg_catalog.starts_with(job_queues.locked_by, 'paused:')
), free as (
  select job_queues.id
  from :schema._private_job_queues as job_queues
  where job_queues.id = any (array(select paused.id from paused))
    and job_queues.locked_at is not null
    and pg_catalog.starts_with(job_queues.locked_by, 'paused:')
  for no key update skip locked
), running as materialized (
  select jobs.id, jobs.locked_by
  from :schema._private_jobs as jobs
  -- A comparison, so that the index gwpy_locked_jobs skips ranges without locked rows.
  where jobs.locked_at > '-infinity'::timestamptz
    and jobs.job_queue_id = (select paused.id from paused)
  limit 1
), resumed as (
  update :schema._private_job_queues as job_queues
  set locked_by = null,
      locked_at = null
  where job_queues.id = any (array(select free.id from free))
    and not exists (select from running)
  returning job_queues.id
)
select
  exists (select from paused),
  exists (select from resumed),
  (select running.id from running),
  (select running.locked_by from running);
