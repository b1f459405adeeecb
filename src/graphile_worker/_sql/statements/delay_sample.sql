-- Delay the next sample $1 by $2 milliseconds, after an attempt that failed.
update :ext_schema.samples as samples
set next_at = pg_catalog.now() + $2::int::float8 * interval '1 millisecond'
where samples.name = $1::text
  and samples.next_at <= pg_catalog.now();
