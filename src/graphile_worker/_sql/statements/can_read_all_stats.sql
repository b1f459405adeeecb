-- Return whether this role may see the sessions of other roles.
select pg_catalog.pg_has_role('pg_read_all_stats', 'usage');
