-- Return whether schema $1 contains the table of turns and this role may lock its rows.
select exists (
  select
  from pg_catalog.pg_class as relation
  join pg_catalog.pg_namespace as schema on schema.oid = relation.relnamespace
  where schema.nspname = $1::text
    and relation.relname = 'turns'
    and pg_catalog.has_schema_privilege(schema.oid, 'usage')
    and pg_catalog.has_table_privilege(relation.oid, 'select')
    and pg_catalog.has_table_privilege(relation.oid, 'update')
);
