-- Make sure that the task identifiers $1 have rows; those that have one cost no sequence value.
insert into :schema._private_tasks (identifier)
select name
from unnest($1::text[]) as name
where not exists (
  select from :schema._private_tasks as tasks where tasks.identifier = name
)
on conflict do nothing;
