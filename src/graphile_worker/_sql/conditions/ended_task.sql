-- The name of its task matches one of the patterns $1.
outcomes.task_identifier like any ($1::text[])
