-- Register pool $1 with a lease of $2 microseconds, and details $3 for people.
insert into :ext_schema.pools as pools (id, lease, details)
values ($1::text, $2::bigint::float8 * interval '1 microsecond', $3::text::json)
on conflict (id) do update
set seen_at = pg_catalog.now()
where pools.swept_at is null;
