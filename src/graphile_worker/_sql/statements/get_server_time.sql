-- What time it is.
select extract(epoch from pg_catalog.clock_timestamp())::text;
