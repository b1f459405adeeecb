-- Return when the first outcome in slot $1 ended. Reads the first one of each task by the index on
-- tasks: see list_kept_tasks.
with recursive tasks as (
  (
    select outcomes.task_identifier
    from :ext_schema.outcomes as outcomes
    where outcomes.slot = $1::smallint
    order by outcomes.task_identifier
    limit 1
  )
  union all
  select (
    select outcomes.task_identifier
    from :ext_schema.outcomes as outcomes
    where outcomes.slot = $1::smallint
      and outcomes.task_identifier > before.task_identifier
    order by outcomes.task_identifier
    limit 1
  )
  from tasks as before
  where before.task_identifier is not null
)
select extract(epoch from pg_catalog.min(first.finished_at))::text
from tasks
cross join (values (true), (false)) as kinds (succeeded)
cross join lateral (
  select outcomes.finished_at
  from :ext_schema.outcomes as outcomes
  where outcomes.slot = $1::smallint
    and outcomes.task_identifier = tasks.task_identifier
    and outcomes.succeeded = kinds.succeeded
  order by outcomes.finished_at
  limit 1
) as first;
