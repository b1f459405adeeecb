-- Release the jobs of the JSON array $1 that pool $2 still has locked, their attempt not counted,
-- and unlock its named queues $3. Returns the ids of these jobs.
with returns as (
  select returned.id, returned.attempts, returned.keyed, returned.run_at, returned.delay
  from pg_catalog.json_to_recordset($1::text::json) as returned (
    id bigint,
    attempts int,
    keyed boolean,
    run_at timestamptz,
    delay bigint
  )
), owned_jobs as materialized (
  -- Locked first: a job may be removed by its key at this moment.
  select
    jobs.id,
    -- Removed or replaced by its key while it was locked. It never runs again, and has no error.
    jobs.attempts >= jobs.max_attempts and returns.keyed and jobs.key is null as is_removed
  from :schema._private_jobs as jobs
  join returns on returns.id = jobs.id
  -- An array beside the join, for the planner: see claim_jobs.
  where jobs.id = any (array(select id from returns))
    and jobs.locked_by = $2::text
  for update of jobs
), removed as (
  delete from :schema._private_jobs as jobs
  where jobs.id = any (array(select id from owned_jobs where is_removed))
), returned as (
  update :schema._private_jobs as jobs
  set attempts = case
        -- Permanently failed while it was locked: it must not run again.
        when jobs.attempts >= jobs.max_attempts and jobs.attempts <> returns.attempts
          then jobs.attempts
        else greatest(0, jobs.attempts - 1)
      end,
      run_at = coalesce(
        returns.run_at,
        pg_catalog.now() + returns.delay::float8 * interval '1 microsecond',
        jobs.run_at
      ),
      locked_by = null,
      locked_at = null
  from returns
  where jobs.id = returns.id
    and jobs.id = any (array(select id from owned_jobs where not is_removed))
  returning jobs.id
), unlocked_queues as (
  update :schema._private_job_queues as job_queues
  set locked_by = null,
      locked_at = null
  where job_queues.id = any ($3::int[])
    and job_queues.locked_by = $2::text
    -- In a retry ($4), the first attempt may have unlocked it, and this pool may have locked it again.
    and (not $4::boolean or exists (select from owned_jobs))
)
select id from owned_jobs;
