-- Release the locked jobs $1 that the conditions select, and with each its named queue. Returns
-- their ids, and how many were skipped. The attempt counts, but is not the last.
with existing as materialized (
  select jobs.id, :conditions as is_selected
  from :schema._private_jobs as jobs
  where jobs.id = any ($1::bigint[])
    and jobs.locked_at is not null
), queues as (
  select job_queues.id, job_queues.locked_by
  from :schema._private_job_queues as job_queues
  join :schema._private_jobs as jobs
    on jobs.job_queue_id = job_queues.id
    and jobs.locked_by = job_queues.locked_by
  where jobs.id = any (array(select existing.id from existing where existing.is_selected))
  for update of job_queues skip locked
), chosen as materialized (
  select jobs.id, jobs.locked_by
  from :schema._private_jobs as jobs
  -- A job and its named queue are released together, or neither is.
  left join :schema._private_job_queues as job_queues
    on job_queues.id = jobs.job_queue_id
    and job_queues.locked_by = jobs.locked_by
  where jobs.id = any (array(select existing.id from existing where existing.is_selected))
    and jobs.locked_at is not null
    and (job_queues.id is null or job_queues.id = any (array(select queues.id from queues)))
    and :conditions
  order by jobs.id
  for update of jobs skip locked
), queues_to_keep as (
  -- The same worker has another job of that queue locked.
  select jobs.job_queue_id
  from :schema._private_jobs as jobs
  join queues on queues.id = jobs.job_queue_id and queues.locked_by = jobs.locked_by
  where jobs.id <> all (array(select chosen.id from chosen))
), changed as (
  update :schema._private_jobs as jobs
  set attempts = case
        when :is_superseded then jobs.attempts
        else greatest(0, least(jobs.attempts, jobs.max_attempts - 1))
      end,
      -- Starts like the error of Rust workers: see _sql/queries/workers.py.
      last_error = 'Job recovered after worker interruption: it was held by pool ' || chosen.locked_by,
      locked_by = null,
      locked_at = null
  from chosen
  where jobs.id = chosen.id
    and jobs.id = any (array(select chosen.id from chosen))
  returning jobs.id
), unlocked_queues as (
  update :schema._private_job_queues as job_queues
  set locked_by = null,
      locked_at = null
  where job_queues.id = any (array(select queues.id from queues))
    and job_queues.id <> all (array(select queues_to_keep.job_queue_id from queues_to_keep))
)
select
  array(select changed.id from changed order by changed.id),
  (select pg_catalog.count(*) from existing where existing.id <> all (array(select chosen.id from chosen)));
