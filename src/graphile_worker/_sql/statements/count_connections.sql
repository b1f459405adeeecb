-- Count the open connections, and those that are available to roles without privileges.
select
  (select pg_catalog.count(*) from pg_catalog.pg_stat_activity where backend_type = 'client backend'),
  pg_catalog.current_setting('max_connections')::int
    - pg_catalog.current_setting('superuser_reserved_connections')::int
    - coalesce(pg_catalog.current_setting('reserved_connections', true)::int, 0);
