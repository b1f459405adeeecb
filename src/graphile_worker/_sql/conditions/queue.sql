-- The name of its queue matches one of the patterns $1.
jobs.job_queue_id = any (
  array(
    select job_queues.id
    from :schema._private_job_queues as job_queues
    where job_queues.queue_name like any ($1::text[])
  )
)
