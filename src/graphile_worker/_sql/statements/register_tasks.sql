-- Add rows for the task identifiers $1; existing ones cost no sequence value. Wait up to $2
-- milliseconds, or as long as the session is set to, if another transaction is adding one of them.
with patience as materialized (
  select pg_catalog.set_config(
    'lock_timeout',
    coalesce($2::int::text, pg_catalog.current_setting('lock_timeout')),
    true
  )
)
insert into :schema._private_tasks (identifier)
select names.name
from patience
cross join pg_catalog.unnest($1::text[]) as names (name)
where not exists (
  select from :schema._private_tasks as tasks where tasks.identifier = names.name
)
on conflict do nothing;
