-- Release those of jobs $2 and named queues $3 that pool $1 has locked without knowing. Returns the
-- ids of the jobs. The pool knows about jobs $4 and queues $5. For a claim whose result was lost,
-- so none of its jobs has started. Rows that another session has locked are skipped: claims wait
-- for this statement.
with orphaned_jobs as (
  select jobs.id
  from :schema._private_jobs as jobs
  where jobs.id = any ($2::bigint[])
    and jobs.locked_by = $1::text
    and jobs.id <> all ($4::bigint[])
  for update skip locked
), returned as (
  update :schema._private_jobs as jobs
  set attempts = case
        when :is_superseded then jobs.attempts
        else greatest(0, jobs.attempts - 1)
      end,
      locked_by = null,
      locked_at = null
  where jobs.id = any (array(select id from orphaned_jobs))
  returning jobs.id
), unlocked_queues as (
  update :schema._private_job_queues as job_queues
  set locked_by = null,
      locked_at = null
  where job_queues.id = any ($3::int[])
    and job_queues.locked_by = $1::text
    and job_queues.id <> all ($5::int[])
    -- A job and its named queue are released together, or neither is.
    and job_queues.id <> all (array(
      select jobs.job_queue_id
      from :schema._private_jobs as jobs
      where jobs.id = any ($2::bigint[])
        and jobs.id <> all (array(select id from orphaned_jobs))
        and jobs.locked_by = $1::text
        and jobs.job_queue_id is not null
    ))
)
select id from returned;
