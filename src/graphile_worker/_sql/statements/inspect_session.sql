-- Return the server, the role of this session, and whether the server accepts writes.
select
  pg_catalog.current_setting('server_version_num')::int,
  pg_catalog.current_setting('server_version'),
  pg_catalog.current_database()::text,
  current_user::text,
  pg_catalog.pg_is_in_recovery(),
  pg_catalog.current_setting('default_transaction_read_only')::boolean,
  pg_catalog.pg_has_role('pg_read_all_stats', 'usage'),
  pg_catalog.pg_backend_pid();
