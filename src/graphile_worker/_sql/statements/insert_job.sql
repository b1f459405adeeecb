-- Insert job $1, which has no key, to run at $4 or $5 microseconds from now. The effect is that of
-- add_job, which plans its statements in every call, but workers are notified only with $10. Returns
-- whether $9 is still valid, and no id if it is not or if a name is new.
with :lock_names, found as materialized (
  select
    (
      select tasks.id
      from :schema._private_tasks as tasks
      where tasks.identifier = $1::text
    ) as task_id,
    (
      select job_queues.id
      from :schema._private_job_queues as job_queues
      where job_queues.queue_name = $3::text
    ) as queue_id,
    coalesce(:is_inspected, false) as is_inspected
), notified as materialized (
  select
    found.task_id,
    found.queue_id,
    case when $10::boolean then pg_catalog.pg_notify(
      'jobs:insert',
      pg_catalog.json_build_object('r', pg_catalog.random(), 'count', 1)::text
    ) end
  from found
  where found.is_inspected
    and found.task_id is not null
    and ($3::text is null or found.queue_id is not null)
), inserted as (
  insert into :schema._private_jobs as jobs
    (job_queue_id, task_id, payload, run_at, max_attempts, priority, flags)
  select
    notified.queue_id,
    notified.task_id,
    coalesce($2::text::json, '{}'::json),
    coalesce(
      $4::text::timestamptz,
      -- An interval times a number uses floating point, which is exact for small numbers.
      pg_catalog.now()
        + ($5::bigint / 3600000000)::float8 * interval '1 hour'
        + ($5::bigint % 3600000000)::float8 * interval '1 microsecond',
      pg_catalog.now()
    ),
    coalesce($6::int::smallint, 25::smallint),
    coalesce($7::int::smallint, 0::smallint),
    (select pg_catalog.jsonb_object_agg(flag, true) from pg_catalog.unnest($8::text[]) as flag)
  from notified
  returning jobs.id
)
select
  found.is_inspected,
  inserted.id::text,
  extract(epoch from pg_catalog.now())::text
from found
left join inserted on true;
