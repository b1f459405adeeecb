-- Wait for $1 milliseconds, in a transaction, for a worker that has locked a named queue.
select pg_catalog.pg_sleep($1::int::float8 / 1000::float8);
