select pid, datname, usename, application_name, state, pg_catalog.now() - xact_start as open_for
from pg_catalog.pg_stat_activity
where backend_type = 'client backend' and xact_start is not null
order by xact_start;
