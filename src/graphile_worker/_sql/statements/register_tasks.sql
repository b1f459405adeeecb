-- Add rows for the task identifiers $1. Existing ones cost no sequence value. If another
-- transaction adds one of them, wait up to $2 milliseconds, or for the lock timeout of the session.
with timeout_setting as materialized (
  select pg_catalog.set_config(
    'lock_timeout',
    coalesce($2::int::text, pg_catalog.current_setting('lock_timeout')),
    true
  )
)
insert into :schema._private_tasks (identifier)
select names.name
from timeout_setting
cross join pg_catalog.unnest($1::text[]) as names (name)
where not exists (
  select from :schema._private_tasks as tasks where tasks.identifier = names.name
)
on conflict do nothing;
