-- Return whether there is a task without jobs, except the names $1.
select exists (
  select
  from :schema._private_tasks as tasks
  where tasks.identifier <> all ($1::text[])
    and not exists (
      select from :schema._private_jobs as jobs where jobs.task_id = tasks.id
    )
);
