-- The indexes of 0003 for a table in use: no session waits for them. Each is built separately,
-- outside of a transaction.
create index concurrently if not exists gwpy_free_jobs
on :schema._private_jobs (task_id, priority, run_at, id)
where is_available = true and job_queue_id is null;

create index concurrently if not exists gwpy_queued_jobs
on :schema._private_jobs (task_id, priority, run_at, id) include (job_queue_id)
where is_available = true and job_queue_id is not null;

create index concurrently if not exists gwpy_jobs_of_queues
on :schema._private_jobs (job_queue_id, priority, run_at, id) include (task_id)
where is_available = true and job_queue_id is not null;

create index concurrently if not exists gwpy_locked_jobs
on :schema._private_jobs using brin (locked_at) with (pages_per_range = 32)
where locked_at is not null;
