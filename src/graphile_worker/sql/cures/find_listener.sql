select pid, datname, usename, application_name, state, now() - xact_start as open_for
from pg_stat_activity
where backend_type = 'client backend' and xact_start is not null
order by xact_start;
