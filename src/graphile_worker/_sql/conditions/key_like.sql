-- Its key matches one of the patterns $1.
jobs.key like any ($1::text[])
