-- Return id, key and queue of up to $2 jobs that have a key or a queue, after the job with id $1.
select
  jobs.id,
  jobs.key,
  job_queues.queue_name
from :schema._private_jobs as jobs
left join :schema._private_job_queues as job_queues on job_queues.id = jobs.job_queue_id
where
  jobs.id > $1::bigint
  and (jobs.key is not null or jobs.job_queue_id is not null)
order by jobs.id
limit $2::int;
