select coalesce(extract(epoch from pg_catalog.now() - pg_catalog.min(jobs.run_at)), 0)::float8 as age
from "${schema}"._private_jobs as jobs
left join "${schema}"._private_job_queues as queues on queues.id = jobs.job_queue_id
where jobs.is_available
  and jobs.run_at <= pg_catalog.now()
  and (jobs.job_queue_id is null or queues.is_available)
