-- Claim the first job, like claim_jobs with a limit of 1, if it is plain: ready, of a known task,
-- without a queue.
--
-- For a worker that has nothing to do, to which one job was announced: it takes half the time of
-- claim_plain_jobs. An empty result does not mean that no job is ready: run claim_jobs then.
with first_job as (
  select jobs.id
  from :schema._private_jobs as jobs
  where jobs.is_available = true
    -- Not in the limit: with a plain number the planner knows that one row is cheap to find.
    and $4::int > 0
    -- The planner does not use these values.
    and row(jobs.priority, jobs.run_at) >= row(
      coalesce($6::int, -32768),
      coalesce($7::text::timestamptz, '-infinity')
    )
  order by jobs.priority, jobs.run_at
  limit 1
), params as materialized (
  select coalesce($5::text::timestamptz, pg_catalog.now()) as claim_time
), locked_job as (
  -- Only a job that is claimed: from other sessions, the lock would hide it.
  select jobs.id
  from :schema._private_jobs as jobs
  where jobs.id = (select id from first_job)
    and jobs.is_available is not false
    and jobs.job_queue_id is null
    and jobs.run_at <= (select claim_time from params)
    and jobs.task_id = any ($2::int[])
    and (jobs.flags ?| $3::text[]) is not true
  for update skip locked
)
update :schema._private_jobs as jobs
set attempts = jobs.attempts + 1,
    locked_by = $1::text,
    -- With a worker's slow clock, a change before the claim would seem to come after it.
    locked_at = greatest((select claim_time from params), jobs.updated_at)
where jobs.id = (select id from locked_job)
returning
  jobs.id,
  jobs.task_id,
  null::text,
  :claimed_columns,
  jobs.job_queue_id,
  -- If there are few jobs: how many are ready, or will be before the next fetch.
  (
    select case
        when pg_catalog.count(*) < 50 and $6::int is null then pg_catalog.count(*) filter (
          where soonest.run_at <= (select claim_time + interval '20 milliseconds' from params)
        )
      end
    from (
      select other.run_at
      from :schema._private_jobs as other
      where other.is_available = true
      order by other.priority, other.run_at
      limit 50
    ) as soonest
  ),
  -- The seconds that the search took in the server.
  (
    select extract(
      epoch from pg_catalog.clock_timestamp() - pg_catalog.statement_timestamp()
    )::text
  );
