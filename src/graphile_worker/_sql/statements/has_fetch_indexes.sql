-- Return whether the indexes $1 that claim_jobs needs exist. An index counts once its build is
-- complete.
select pg_catalog.count(*) = pg_catalog.cardinality($1::text[])
from pg_catalog.pg_index as definition
join pg_catalog.pg_class as relation on relation.oid = definition.indexrelid
where relation.relname = any ($1::text[])
  and definition.indisvalid
  and definition.indisready
  and relation.relnamespace = (
    select tasks.relnamespace
    from pg_catalog.pg_class as tasks
    where tasks.oid = (select known.tableoid from :schema._private_tasks as known limit 1)
  );
