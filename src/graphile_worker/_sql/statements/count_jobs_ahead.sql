-- Count the ready jobs that run before job $1, up to $3: those of tasks $2, or of all, that are not
-- in a locked named queue. Also return whether there may be more.
--
-- The search ends after twice as many jobs. Those that were added together have the same time, so a
-- million of them may have to be compared by their ids.
with own as materialized (
  select jobs.id, jobs.priority, jobs.run_at
  from :schema._private_jobs as jobs
  where jobs.id = $1::bigint
), soonest as materialized (
  select jobs.id, jobs.task_id, jobs.job_queue_id, jobs.priority, jobs.run_at
  from :schema._private_jobs as jobs
  where jobs.is_available = true
    and row(jobs.priority, jobs.run_at)
      <= row((select priority from own), (select run_at from own))
    and jobs.run_at <= pg_catalog.now()
  order by jobs.priority, jobs.run_at
  limit 2 * $3::int
), ahead as (
  select
  from soonest
  where row(soonest.priority, soonest.run_at, soonest.id)
      < row((select priority from own), (select run_at from own), (select id from own))
    and (
      $2::text[] is null
      or soonest.task_id = any (
        array(
          select tasks.id
          from :schema._private_tasks as tasks
          where tasks.identifier = any ($2::text[])
        )
      )
    )
    and (
      soonest.job_queue_id in (
        select locked.id
        from :schema._private_job_queues as locked
        where locked.locked_at is not null
      )
    ) is not true
  limit $3::int
)
select
  (select pg_catalog.count(*) from ahead),
  (select pg_catalog.count(*) from ahead) = $3::int
  or (select pg_catalog.count(*) from soonest) = 2 * $3::int;
