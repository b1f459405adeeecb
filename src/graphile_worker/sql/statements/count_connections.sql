-- How many connections there are, and how many there can be for roles without privileges.
select
  (select count(*) from pg_stat_activity where backend_type = 'client backend'),
  current_setting('max_connections')::int
    - current_setting('superuser_reserved_connections')::int
    - coalesce(current_setting('reserved_connections', true)::int, 0);
