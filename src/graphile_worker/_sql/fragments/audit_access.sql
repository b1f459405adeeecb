-- Whether this role may add entries to the table audit of schema $1.
(
  select exists (
    select from pg_catalog.pg_class as relation
    join pg_catalog.pg_namespace as schema on schema.oid = relation.relnamespace
    where schema.nspname = $1::text
      and relation.relname = 'audit'
      and pg_catalog.has_schema_privilege(schema.oid, 'usage')
      and pg_catalog.has_any_column_privilege(relation.oid, 'insert')
  ) as is_granted
)
