-- Insert jobs without keys, one for each element of the arrays $1 to $8. The effect is that of
-- add_jobs, but workers are notified only with $10. Returns whether $9 is still valid, the ids in the
-- order of the arrays, and the time. It inserts nothing and returns no ids if $9 is not valid or if a
-- name is new.
with :lock_names, :given_jobs, found as materialized (
  select
    coalesce(:is_inspected, false) as is_inspected,
    pg_catalog.bool_or(spec.is_new) as has_new,
    pg_catalog.count(*) as count
  from spec
), notified as materialized (
  select
    case when $10::boolean then pg_catalog.pg_notify(
      'jobs:insert',
      pg_catalog.json_build_object('r', pg_catalog.random(), 'count', found.count)::text
    ) end
  from found
  where found.is_inspected
    and not found.has_new
), inserted as (
  insert into :schema._private_jobs as jobs
    (job_queue_id, task_id, payload, run_at, max_attempts, priority, flags)
  select
    :new_job_columns
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
