-- The columns of an outcome in a list: with the first lines of its error, and without its result.
outcomes.job_id,
outcomes.task_identifier,
outcomes.succeeded,
outcomes.attempts,
extract(epoch from outcomes.created_at)::text,
extract(epoch from outcomes.run_at)::text,
extract(epoch from outcomes.started_at)::text,
extract(epoch from outcomes.finished_at)::text,
outcomes.pool_id,
outcomes.has_result,
pg_catalog.left(outcomes.error, 600)
