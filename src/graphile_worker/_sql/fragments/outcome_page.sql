-- One page of outcomes, the newest first: from time $1 on, and before time $2 and job id $3, at most
-- $4.
outcomes.finished_at >= pg_catalog.to_timestamp($1::text::float8)
  and outcomes.finished_at <= pg_catalog.to_timestamp($2::text::float8)
  and row(outcomes.finished_at, outcomes.job_id) < row(pg_catalog.to_timestamp($2::text::float8), $3::bigint)
  and (outcomes.expires_at is null or outcomes.expires_at > pg_catalog.now())
  and :conditions
order by outcomes.finished_at desc, outcomes.job_id desc
limit $4::int
