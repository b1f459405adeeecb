-- It has from $1 to $2 attempts.
jobs.attempts between $1::bigint and $2::bigint
