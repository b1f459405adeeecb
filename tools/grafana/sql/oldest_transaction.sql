select coalesce(max(extract(epoch from now() - xact_start)), 0)::float8 as age
from pg_stat_activity
where datname = current_database()
  and pid <> pg_backend_pid()
