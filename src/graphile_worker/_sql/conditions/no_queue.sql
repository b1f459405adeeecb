-- It has no named queue.
jobs.job_queue_id is null
