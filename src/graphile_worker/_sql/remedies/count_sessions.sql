select usename, application_name, client_addr, state, pg_catalog.count(*)
from pg_catalog.pg_stat_activity
where backend_type = 'client backend'
group by 1, 2, 3, 4
order by 5 desc;
