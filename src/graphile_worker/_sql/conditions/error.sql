-- Its last error is like one of $1, in capitals or not.
jobs.last_error ilike any ($1::text[])
