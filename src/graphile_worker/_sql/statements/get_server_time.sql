-- Return the current time of the server.
select extract(epoch from pg_catalog.clock_timestamp())::text;
