-- Count the ready jobs that run before job $1, up to $3: those of tasks $2, or of all, that are not
-- in a locked named queue.
select pg_catalog.count(*)
from (
  select
  from :schema._private_jobs as jobs
  join :schema._private_jobs as own
    on (jobs.priority, jobs.run_at, jobs.id) < (own.priority, own.run_at, own.id)
  where own.id = $1::bigint
    and jobs.is_available = true
    and jobs.run_at <= pg_catalog.now()
    and (
      $2::text[] is null
      or jobs.task_id = any (
        array(
          select tasks.id
          from :schema._private_tasks as tasks
          where tasks.identifier = any ($2::text[])
        )
      )
    )
    and (
      jobs.job_queue_id in (
        select locked.id
        from :schema._private_job_queues as locked
        where locked.locked_at is not null
      )
    ) is not true
  limit $3::int
) as ahead;
