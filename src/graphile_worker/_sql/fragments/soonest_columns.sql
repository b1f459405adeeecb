-- The columns by which a claim chooses jobs.
jobs.id,
jobs.task_id,
jobs.job_queue_id,
jobs.priority,
jobs.run_at,
(jobs.flags ?| (select flags from params)) is not true as is_allowed
