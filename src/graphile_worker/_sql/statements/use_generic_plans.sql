-- Let this session plan each prepared statement once, unless it belongs to a connection pooler.
--
-- $1 is the process id that the server, or the pooler in its place, sent at the start of the
-- connection. Behind a pooler another client may use the session next, so its settings stay as they
-- are. A setting of the role or the database has precedence.
select pg_catalog.set_config('plan_cache_mode', 'force_generic_plan', false)
where pg_catalog.pg_backend_pid() = $1::int
  and pg_catalog.current_setting('plan_cache_mode') = 'auto';
