-- Delete the tasks without jobs, except the names $1. Returns how many.
with deleted as (
  delete from :schema._private_tasks as tasks
  where tasks.identifier <> all ($1::text[])
    and not exists (
      select from :schema._private_jobs as jobs where jobs.task_id = tasks.id
    )
  returning tasks.id
)
select pg_catalog.count(*) from deleted;
