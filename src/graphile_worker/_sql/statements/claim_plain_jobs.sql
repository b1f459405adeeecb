-- Claim jobs like claim_jobs, if all ready jobs among the soonest are plain: of known tasks,
-- without a queue.
--
-- That is nearly always the case, and takes a third of the time. An empty result does not mean that
-- no job is ready: run claim_jobs then. The steps have the form of claim_jobs for the same reasons.
with :claim_params,
:soonest_jobs,
spans as (
  -- In one step: keeping and sorting the jobs again would take as long as locking them.
  select
    priority,
    pg_catalog.min(run_at) as since,
    pg_catalog.max(run_at) filter (where run_at <= (select claim_time from params)) as until,
    pg_catalog.bool_and(
      job_queue_id is null
      and is_allowed
      and task_id = any ((select tasks from params)::int[])
    ) filter (where run_at <= (select claim_time from params)) as are_plain,
    pg_catalog.count(*) as seen_count,
    pg_catalog.count(*) filter (
      where run_at <= (select claim_time + interval '20 milliseconds' from params)
    ) as due_count
  from soonest
  group by priority
), seen as (
  select
    pg_catalog.bool_and(are_plain) as all_are_plain,
    pg_catalog.array_agg(priority order by priority) filter (where until is not null) as priorities,
    pg_catalog.array_agg(since order by priority) filter (where until is not null) as since,
    pg_catalog.array_agg(until order by priority) filter (where until is not null) as until,
    pg_catalog.sum(seen_count)::int as seen_count,
    pg_catalog.sum(due_count)::int as due_count
  from spans
), plain as (
  -- They are locked as they are read, which is cheapest. The search starts at the first job of each
  -- priority, because the index may have thousands of deleted ones before it, and ends at the last
  -- one that is due, because a million future jobs may follow. Before version 18, PostgreSQL stops
  -- at a time only if the priority is one value. With a row of both it reads the whole priority.
  select job.id
  from rows from (
    pg_catalog.unnest((select priorities from seen)),
    pg_catalog.unnest((select since from seen)),
    pg_catalog.unnest((select until from seen))
  ) as span (priority, since, until)
  cross join lateral (
    select jobs.id, jobs.task_id, jobs.flags
    from :schema._private_jobs as jobs
    where jobs.is_available = true
      and jobs.job_queue_id is null
      and jobs.priority = span.priority
      and jobs.run_at >= span.since
      and jobs.run_at <= span.until
    order by jobs.run_at
    limit 2550
    for update skip locked
  ) as job
  where (select all_are_plain from seen)
    and job.task_id = any ((select tasks from params)::int[])
    and (job.flags ?| (select flags from params)) is not true
  -- The limit on the jobs that are locked.
  limit (select max_jobs from params)
)
update :schema._private_jobs as jobs
set attempts = jobs.attempts + 1,
    locked_by = $1::text,
    -- With a worker's slow clock, a change before the claim would seem to come after it.
    locked_at = greatest((select claim_time from params), jobs.updated_at)
where jobs.id = any (array(select id from plain))
-- In no order: the worker sorts them, which is cheaper than sorting them here.
returning
  jobs.id,
  jobs.task_id,
  null::text,
  :claimed_columns,
  jobs.job_queue_id,
  -- If the search read all jobs: how many are ready, or will be before the next fetch.
  (
    select case when seen.seen_count < params.enough and $6::int is null then seen.due_count end
    from seen, params
  ),
  -- The seconds that the search took in the server, computed once, for the first row.
  (
    select extract(
      epoch from pg_catalog.clock_timestamp() - pg_catalog.statement_timestamp()
    )::text
  );
