select pg_catalog.pg_terminate_backend(:'pid');
