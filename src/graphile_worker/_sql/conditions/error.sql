-- Its last error matches one of the patterns $1, in any case.
jobs.last_error ilike any ($1::text[])
