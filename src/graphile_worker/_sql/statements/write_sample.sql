-- Write the sample $1 with its content $2. It took $3 milliseconds, and the next one is due in $4
-- milliseconds.
update :ext_schema.samples as samples
set taken_at = pg_catalog.now(),
    next_at = pg_catalog.clock_timestamp() + $4::int::float8 * interval '1 millisecond',
    duration = $3::int::float8 / 1000::float8,
    body = $2::text::json
where samples.name = $1::text;
