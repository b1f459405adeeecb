-- Its id is one of $1.
jobs.id = any ($1::bigint[])
