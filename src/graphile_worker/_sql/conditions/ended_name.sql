-- The name of its task matches one of the patterns $1, in any case.
outcomes.task_identifier ilike any ($1::text[])
