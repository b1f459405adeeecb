-- Return whether this role may read and may write the samples in schema $1, beside schema $2, whether
-- schema $2 has all indexes $3, and whether its jobs are hidden from this role. A standby has no unlogged tables. A table of a foreign role
-- is not used, because its code could run as this role.
with samples as (
  select relation.oid
  from pg_catalog.pg_class as relation
  join pg_catalog.pg_namespace as schema on schema.oid = relation.relnamespace
  where schema.nspname = $1::text
    and relation.relname = 'samples'
    and not pg_catalog.pg_is_in_recovery()
    and pg_catalog.has_schema_privilege(schema.oid, 'usage')
    and pg_catalog.has_table_privilege(relation.oid, 'select')
    and not exists (:foreign_objects)
)
select
  exists (select from samples),
  exists (
    select
    from samples
    where pg_catalog.current_setting('default_transaction_read_only') = 'off'
      and pg_catalog.has_table_privilege(samples.oid, 'insert')
      and pg_catalog.has_table_privilege(samples.oid, 'update')
  ),
  (
    select pg_catalog.count(*) = pg_catalog.cardinality($3::text[])
    from pg_catalog.pg_index as definition
    join pg_catalog.pg_class as relation on relation.oid = definition.indexrelid
    join pg_catalog.pg_namespace as schema on schema.oid = relation.relnamespace
    where schema.nspname = $2::text
      and relation.relname = any ($3::text[])
      and definition.indisvalid
      and definition.indisready
  ),
  exists (
    select
    from pg_catalog.pg_class as relations
    join pg_catalog.pg_namespace as schema on schema.oid = relations.relnamespace
    where schema.nspname = $2::text
      and relations.relname = '_private_jobs'
      and :are_rows_hidden
  );
