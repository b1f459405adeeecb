-- Claim job $2 for pool $1, in any order, if it is due at $3 and neither it nor its queue is
-- locked.
with ready as (
  select jobs.id, jobs.job_queue_id
  from :schema._private_jobs as jobs
  where jobs.id = $2::bigint
    and jobs.is_available = true
    and jobs.run_at <= $3::text::timestamptz
    and (
      jobs.job_queue_id is null
      or exists (
        select
        from :schema._private_job_queues as job_queues
        where job_queues.id = jobs.job_queue_id
          and job_queues.is_available = true
      )
    )
  for update skip locked
), queues as (
  update :schema._private_job_queues as job_queues
  set locked_by = $1::text,
      locked_at = pg_catalog.now()
  where job_queues.id = (select job_queue_id from ready)
)
update :schema._private_jobs as jobs
set attempts = jobs.attempts + 1,
    locked_by = $1::text,
    locked_at = pg_catalog.now()
from :schema._private_tasks as tasks
where jobs.id = (select id from ready)
  and tasks.id = jobs.task_id
returning
  jobs.id,
  tasks.identifier,
  (
    select job_queues.queue_name
    from :schema._private_job_queues as job_queues
    where job_queues.id = jobs.job_queue_id
  ),
  :job_columns,
  jobs.job_queue_id;
