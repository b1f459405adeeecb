-- The jobs of the arrays $1 to $8, with the ids of their names. The arrays are tasks, payloads,
-- queues, times, microseconds from now, maximums of attempts, priorities, and flags as the text of
-- an array. Null stands for an array of nulls.
spec as materialized (
  select
    tasks.id as task_id,
    job_queues.id as queue_id,
    tasks.id is null or (given.queue_name is not null and job_queues.id is null) as is_new,
    given.payload,
    given.run_at,
    given.delay,
    given.max_attempts,
    given.priority,
    given.flags,
    given.position
  from rows from (
    pg_catalog.unnest($1::text::text[]),
    pg_catalog.unnest($2::text::text[]),
    pg_catalog.unnest($3::text::text[]),
    pg_catalog.unnest($4::text::timestamptz[]),
    pg_catalog.unnest($5::text::bigint[]),
    pg_catalog.unnest($6::text::smallint[]),
    pg_catalog.unnest($7::text::smallint[]),
    pg_catalog.unnest($8::text::text[])
  ) with ordinality as given
    (identifier, payload, queue_name, run_at, delay, max_attempts, priority, flags, position)
  left join :schema._private_tasks as tasks on tasks.identifier = given.identifier
  left join :schema._private_job_queues as job_queues on job_queues.queue_name = given.queue_name
)
