-- The name of its task matches one of the patterns $1.
jobs.task_id = any (
  array(
    select tasks.id
    from :schema._private_tasks as tasks
    where tasks.identifier like any ($1::text[])
  )
)
