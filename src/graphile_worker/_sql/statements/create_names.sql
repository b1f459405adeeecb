-- Create the tasks $1 and the queues $2 that do not exist. Only names that are missing use up ids. Null
-- stands for an array with one null, which is not a task. Names in one order in every session, and
-- tasks before queues as in add_jobs: opposite orders would deadlock.
with tasks as (
  insert into :schema._private_tasks (identifier)
  select names.name
  from pg_catalog.unnest(coalesce($1::text::text[], array[null::text])) as names (name)
  where not exists (
    select
    from :schema._private_tasks as known
    where known.identifier = names.name
  )
  order by names.name
  on conflict do nothing
  returning id
)
insert into :schema._private_job_queues (queue_name)
select names.name
from pg_catalog.unnest($2::text::text[]) as names (name)
where names.name is not null
  -- After all tasks are created.
  and (select pg_catalog.count(*) from tasks) >= 0
  and not exists (
    select
    from :schema._private_job_queues as known
    where known.queue_name = names.name
  )
order by names.name
on conflict do nothing;
