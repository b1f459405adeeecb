select pg_catalog.count(*) filter (where queue_id is null) + pg_catalog.count(distinct queue_id) as runnable
from (
  (
    select job_queue_id as queue_id
    from "${schema}"._private_jobs
    where locked_at is not null
    limit 10000
  )
  union all
  (
    select job_queue_id
    from "${schema}"._private_jobs
    where is_available
      and job_queue_id is null
      and run_at <= pg_catalog.now() + interval '30 seconds'
    limit 10000
  )
  union all
  (
    select distinct jobs.job_queue_id
    from "${schema}"._private_jobs as jobs
    join "${schema}"._private_job_queues as queues on queues.id = jobs.job_queue_id
    where jobs.is_available
      and queues.is_available
      and jobs.run_at <= pg_catalog.now() + interval '30 seconds'
    limit 10000
  )
) as work
