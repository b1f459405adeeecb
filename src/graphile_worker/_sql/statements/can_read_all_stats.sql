-- May this role see what the sessions of others do?
select pg_catalog.pg_has_role('pg_read_all_stats', 'usage');
