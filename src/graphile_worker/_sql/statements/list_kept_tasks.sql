-- Return the names of at most $1 tasks that have outcomes. Goes from one name to the next by the
-- index on tasks, so the number of outcomes does not matter.
with recursive tasks as (
  (
    select outcomes.task_identifier
    from :ext_schema.outcomes as outcomes
    order by outcomes.task_identifier
    limit 1
  )
  union all
  select (
    select outcomes.task_identifier
    from :ext_schema.outcomes as outcomes
    where outcomes.task_identifier > before.task_identifier
    order by outcomes.task_identifier
    limit 1
  )
  from tasks as before
  where before.task_identifier is not null
)
select tasks.task_identifier
from tasks
where tasks.task_identifier is not null
limit $1::int;
