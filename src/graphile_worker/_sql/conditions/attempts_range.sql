-- It was tried $1 to $2 times.
jobs.attempts between $1::bigint and $2::bigint
