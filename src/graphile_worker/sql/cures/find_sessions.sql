select usename, application_name, client_addr, state, count(*)
from pg_stat_activity
where backend_type = 'client backend'
group by 1, 2, 3, 4
order by 5 desc;
