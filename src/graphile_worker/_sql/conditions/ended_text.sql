-- The name of its task or its error matches one of the patterns $1, in any case.
outcomes.task_identifier ilike any ($1::text[])
or outcomes.error ilike any ($1::text[])
