-- Take jobs as claim_jobs does, if all that are ready among the soonest are plain: ours, and in no queue.
--
-- That is so nearly always, and then this takes a third of the time. An empty answer says nothing:
-- ask claim_jobs. The steps are written as they are for the same reasons as there.
with :claim_params,
:soonest_jobs,
spans as (
  -- In one go: to keep the jobs and sort them again would take as long as to lock them.
  select
    priority,
    pg_catalog.min(run_at) as since,
    pg_catalog.max(run_at) as until,
    pg_catalog.bool_and(
      job_queue_id is null
      and is_allowed
      and task_id = any ((select tasks from given)::int[])
    ) as are_plain
  from soonest
  where run_at <= (select moment from given)
  group by priority
), seen as (
  select
    pg_catalog.bool_and(are_plain) as all_are_plain,
    pg_catalog.array_agg(priority order by priority) as priorities,
    pg_catalog.array_agg(since order by priority) as since,
    pg_catalog.array_agg(until order by priority) as until
  from spans
), plain as (
  -- They are locked as they are read, which is the cheapest of all ways. From the first of each
  -- priority on, as before it the index may hold thousands that are gone, and to the last, as behind
  -- it there may be a million whose time has not come. Before version 18, PostgreSQL stops at a time
  -- only if the priority is one value: given a row of both as its end, it reads that whole priority.
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
    and job.task_id = any ((select tasks from given)::int[])
    and (job.flags ?| (select flags from given)) is not true
  -- No more of them are locked than this.
  limit (select wanted from given)
)
update :schema._private_jobs as jobs
set attempts = jobs.attempts + 1,
    locked_by = $1::text,
    -- By a worker's own clock that is late, a change before the claim would seem to come after it.
    locked_at = greatest((select moment from given), jobs.updated_at)
where jobs.id = any (array(select id from plain))
-- In no order: whoever reads them sorts them, which is cheaper than to keep them all for it here.
returning
  jobs.id,
  jobs.task_id,
  null::text,
  :claimed_columns,
  jobs.job_queue_id,
  -- How long the search took in the server, in seconds: made once, for the first row.
  (
    select extract(
      epoch from pg_catalog.clock_timestamp() - pg_catalog.statement_timestamp()
    )::text
  );
