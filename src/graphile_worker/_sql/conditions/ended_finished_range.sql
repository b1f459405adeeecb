-- It ended from $1 to $2.
outcomes.finished_at between pg_catalog.to_timestamp($1::text::float8) and pg_catalog.to_timestamp($2::text::float8)
