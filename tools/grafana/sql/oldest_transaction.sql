select coalesce(pg_catalog.max(extract(epoch from pg_catalog.now() - xact_start)), 0)::float8 as age
from pg_stat_activity
where datname = pg_catalog.current_database()
  and pid <> pg_catalog.pg_backend_pid()
