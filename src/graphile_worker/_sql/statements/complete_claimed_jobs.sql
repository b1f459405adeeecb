-- Delete completed jobs $1 that pool $2 still has locked, and unlock its named queues $3. Returns
-- the ids of these jobs.
with finished as (
  delete from :schema._private_jobs as jobs
  where jobs.id = any ($1::text::bigint[])
    and jobs.locked_by = $2::text
  returning jobs.id
), unlocked_queues as (
  update :schema._private_job_queues as job_queues
  set locked_by = null,
      locked_at = null
  where job_queues.id = any ($3::int[])
    and job_queues.locked_by = $2::text
    -- In a retry ($4), the first attempt may have unlocked it, and this pool may have locked it again.
    and (not $4::boolean or exists (select from finished))
)
select id from finished;
