-- The columns of an outcome as they are stored, without its result.
outcomes.job_id,
outcomes.task_identifier,
outcomes.succeeded,
outcomes.attempts,
outcomes.created_at,
outcomes.run_at,
outcomes.started_at,
outcomes.finished_at,
outcomes.pool_id,
outcomes.has_result,
outcomes.error
