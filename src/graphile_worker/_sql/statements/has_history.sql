-- Return whether schema $1 contains the tables of outcomes and this role may write to them.
select pg_catalog.count(*) = 3
from pg_catalog.pg_class as relation
join pg_catalog.pg_namespace as schema on schema.oid = relation.relnamespace
where schema.nspname = $1::text
  and pg_catalog.has_schema_privilege(schema.oid, 'usage')
  and (
    (relation.relname = 'history' and pg_catalog.has_table_privilege(relation.oid, 'select'))
    or (
      relation.relname in ('outcomes', 'attempts')
      and pg_catalog.has_table_privilege(relation.oid, 'insert')
    )
  );
