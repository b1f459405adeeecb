-- The columns of a new job, with the defaults of add_jobs: its queue, task, payload, time, maximum of
-- attempts, priority and flags.
spec.queue_id,
spec.task_id,
coalesce(spec.payload::json, '{}'::json),
coalesce(
  spec.run_at,
  -- An interval times a number uses floating point, which is exact for small numbers.
  pg_catalog.now()
    + (spec.delay / 3600000000)::float8 * interval '1 hour'
    + (spec.delay % 3600000000)::float8 * interval '1 microsecond',
  pg_catalog.now()
),
coalesce(spec.max_attempts, 25::smallint),
coalesce(spec.priority, 0::smallint),
case when spec.flags is not null then (
  select pg_catalog.jsonb_object_agg(flag, true)
  from pg_catalog.unnest(spec.flags::text[]) as flag
) end
