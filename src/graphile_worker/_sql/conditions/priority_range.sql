-- Its priority is from $1 to $2.
jobs.priority between $1::bigint and $2::bigint
