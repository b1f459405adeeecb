-- The worker that has it locked matches one of the patterns $1.
jobs.locked_by like any ($1::text[])
