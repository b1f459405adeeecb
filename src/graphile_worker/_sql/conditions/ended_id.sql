-- Its id is one of $1.
outcomes.job_id = any ($1::bigint[])
