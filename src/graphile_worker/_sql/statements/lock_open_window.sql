-- Lock key $1 if its window is open at time $2, or now, so that it stays until the end of the
-- transaction.
select keys.job_id
from :ext_schema.unique_keys as keys
where keys.key = $1::text
  and keys.until > coalesce($2::text::timestamptz, pg_catalog.clock_timestamp())
for share;
