-- The columns of a job after its id and the names of its task and queue.
jobs.payload::text,
jobs.priority,
extract(epoch from jobs.run_at)::text,
jobs.attempts,
jobs.max_attempts,
jobs.last_error,
extract(epoch from jobs.created_at)::text,
extract(epoch from jobs.updated_at)::text,
jobs.key,
extract(epoch from jobs.locked_at)::text,
jobs.locked_by,
jobs.revision,
jobs.flags::text
