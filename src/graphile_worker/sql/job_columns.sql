-- What a statement says of a job after its id and the names of its task and queue.
jobs.payload::text,
jobs.priority,
extract(epoch from jobs.run_at)::float8,
jobs.attempts,
jobs.max_attempts,
jobs.last_error,
extract(epoch from jobs.created_at)::float8,
extract(epoch from jobs.updated_at)::float8,
jobs.key,
extract(epoch from jobs.locked_at)::float8,
jobs.locked_by,
jobs.revision,
jobs.flags::text
