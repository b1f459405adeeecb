-- The name of its task or its key matches one of the patterns $1, in any case.
jobs.task_id = any (
  array(
    select tasks.id
    from :schema._private_tasks as tasks
    where tasks.identifier ilike any ($1::text[])
  )
)
or jobs.key ilike any ($1::text[])
