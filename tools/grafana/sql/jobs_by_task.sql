select
  tasks.identifier as task,
  pg_catalog.count(*) filter (where state = 'ready') as ready,
  pg_catalog.count(*) filter (where state = 'waiting') as waiting,
  pg_catalog.count(*) filter (where state = 'running') as running,
  pg_catalog.count(*) filter (where state = 'retrying') as retrying,
  pg_catalog.count(*) filter (where state = 'scheduled') as scheduled,
  pg_catalog.count(*) filter (where state = 'failed') as failed,
  extract(epoch from pg_catalog.now() - pg_catalog.min(run_at) filter (where state = 'ready'))::float8 as oldest
from (
  select
    jobs.task_id,
    jobs.run_at,
    case
      when jobs.locked_at is not null then 'running'
      when jobs.attempts >= jobs.max_attempts then 'failed'
      when jobs.run_at > pg_catalog.now() and jobs.attempts > 0 then 'retrying'
      when jobs.run_at > pg_catalog.now() then 'scheduled'
      when queues.locked_at is not null then 'waiting'
      else 'ready'
    end as state
  from "${schema}"._private_jobs as jobs
  left join "${schema}"._private_job_queues as queues on queues.id = jobs.job_queue_id
) as jobs
left join "${schema}"._private_tasks as tasks on tasks.id = jobs.task_id
group by tasks.identifier
order by ready desc, running desc
limit 100
