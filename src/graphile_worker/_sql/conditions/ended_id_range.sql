-- Its id is from $1 to $2.
outcomes.job_id between $1::bigint and $2::bigint
