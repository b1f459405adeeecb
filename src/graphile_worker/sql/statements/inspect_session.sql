-- Which server this is, as whom we are there, and whether anything can be written.
select
  current_setting('server_version_num')::int,
  current_setting('server_version'),
  current_database()::text,
  current_user::text,
  pg_is_in_recovery(),
  current_setting('default_transaction_read_only')::boolean,
  pg_has_role('pg_read_all_stats', 'usage'),
  pg_backend_pid();
