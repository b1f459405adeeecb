-- Set the values in force of limit $1 of kind $2: amount $3, a period of $4 microseconds and burst $5,
-- on behalf of $6 or this role. Returns who set them and when, or no row if no
-- limit has this name and kind.
update :ext_schema.limits as limits
set amount = $3::int,
    period = $4::bigint::float8 * interval '1 microsecond',
    burst = $5::int,
    set_by = coalesce($6::text, session_user),
    set_at = pg_catalog.now()
where limits.name = $1::text
  and limits.kind = $2::text
returning limits.set_by, extract(epoch from limits.set_at)::text;
