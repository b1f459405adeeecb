-- Insert jobs without keys, one for each element of the arrays $1 to $8. The effect is that of
-- add_jobs. Returns whether $9 is still valid, the ids in the order of the arrays, and the time. It
-- inserts nothing and returns no ids if $9 is not valid or if a name is new.
--
-- The arrays are tasks, payloads, queues, times, microseconds from now, maximums of attempts,
-- priorities, and flags as the text of an array. Null stands for an array of nulls.
with :lock_names, spec as materialized (
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
), found as materialized (
  select
    coalesce(:is_inspected, false) as is_inspected,
    pg_catalog.bool_or(spec.is_new) as has_new,
    pg_catalog.count(*) as count
  from spec
), notified as materialized (
  select
    pg_catalog.pg_notify(
      'jobs:insert',
      pg_catalog.json_build_object('r', pg_catalog.random(), 'count', found.count)::text
    )
  from found
  where found.is_inspected
    and not found.has_new
), inserted as (
  insert into :schema._private_jobs as jobs
    (job_queue_id, task_id, payload, run_at, max_attempts, priority, flags)
  select
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
  from spec
  where exists (select from notified)
  -- Equal jobs run in the order of their ids.
  order by spec.position
  returning jobs.id
)
select
  found.is_inspected,
  (select pg_catalog.array_agg(inserted.id)::text from inserted),
  extract(epoch from pg_catalog.now())::text
from found;
