-- Keep outcomes for $1 microseconds, and at most $2 of them, or any number if $3. Null changes
-- nothing.
update :ext_schema.history as history
set keep = coalesce($1::bigint::float8 * interval '1 microsecond', history.keep),
    max_rows = case when $3::boolean then null else coalesce($2::bigint, history.max_rows) end
where history.name = 'outcomes';
