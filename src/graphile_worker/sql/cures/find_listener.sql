select pid, usename, application_name, state, now() - xact_start as open_for
from pg_stat_activity
where datname = current_database() and xact_start is not null
order by xact_start;
