-- Release locks older than four hours at time $1 or now, except jobs $3 and named queues $4, which
-- pool $2 still uses. Returns how many jobs. Rows that another session has locked are skipped.
with queues as (
  select job_queues.id, job_queues.locked_by
  from :schema._private_job_queues as job_queues
  where job_queues.locked_at < coalesce($1::text::timestamptz, pg_catalog.now()) - interval '4 hours'
    and (job_queues.locked_by is distinct from $2::text or job_queues.id <> all ($4::int[]))
  for update skip locked
), stale_jobs as (
  select jobs.id
  from :schema._private_jobs as jobs
  -- A job and its named queue are released together, or neither is.
  left join :schema._private_job_queues as job_queues
    on job_queues.id = jobs.job_queue_id
    and job_queues.locked_by = jobs.locked_by
  where jobs.locked_at < coalesce($1::text::timestamptz, pg_catalog.now()) - interval '4 hours'
    and (jobs.locked_by is distinct from $2::text or jobs.id <> all ($3::bigint[]))
    and (job_queues.id is null or job_queues.id = any (array(select id from queues)))
  for update of jobs skip locked
), queues_to_keep as (
  select jobs.job_queue_id
  from :schema._private_jobs as jobs
  join queues on queues.id = jobs.job_queue_id and queues.locked_by = jobs.locked_by
  where jobs.locked_at > '-infinity'::timestamptz
    and jobs.id <> all (array(select id from stale_jobs))
), unlocked_queues as (
  update :schema._private_job_queues as job_queues
  set locked_by = null,
      locked_at = null
  where job_queues.id = any (array(select id from queues))
    and job_queues.id <> all (array(select job_queue_id from queues_to_keep))
), unlocked as (
  update :schema._private_jobs as jobs
  set locked_by = null,
      locked_at = null,
      -- After the jobs that are ready.
      run_at = greatest(jobs.run_at, coalesce($1::text::timestamptz, pg_catalog.now()))
  where jobs.id = any (array(select id from stale_jobs))
  returning jobs.id
)
select pg_catalog.count(*) from unlocked;
