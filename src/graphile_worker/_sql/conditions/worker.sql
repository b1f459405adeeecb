-- The worker that holds it is called like one of $1.
jobs.locked_by like any ($1::text[])
