-- Return the name of the database, and what this role may do with schema $1 and companion $2:
-- change jobs, read the history, and read the audit. A standby accepts no changes.
select
  pg_catalog.current_database()::text,
  not pg_catalog.pg_is_in_recovery()
    and exists (
      select
      from pg_catalog.pg_class as relation
      join pg_catalog.pg_namespace as schema on schema.oid = relation.relnamespace
      where schema.nspname = $1::text
        and relation.relname = '_private_jobs'
        and pg_catalog.has_schema_privilege(schema.oid, 'usage')
        and pg_catalog.has_table_privilege(relation.oid, 'update')
    ),
  (
    select pg_catalog.count(*) = 2
    from pg_catalog.pg_class as relation
    join pg_catalog.pg_namespace as schema on schema.oid = relation.relnamespace
    where schema.nspname = $2::text
      and relation.relname in ('outcomes', 'history')
      and pg_catalog.has_schema_privilege(schema.oid, 'usage')
      and pg_catalog.has_any_column_privilege(relation.oid, 'select')
  ),
  exists (
    select
    from pg_catalog.pg_class as relation
    join pg_catalog.pg_namespace as schema on schema.oid = relation.relnamespace
    where schema.nspname = $2::text
      and relation.relname = 'audit'
      and pg_catalog.has_schema_privilege(schema.oid, 'usage')
      and pg_catalog.has_any_column_privilege(relation.oid, 'select')
  ),
  exists (
    select
    from pg_catalog.pg_class as relation
    join pg_catalog.pg_namespace as schema on schema.oid = relation.relnamespace
    where schema.nspname = $2::text
      and relation.relname = 'pauses'
      and pg_catalog.has_schema_privilege(schema.oid, 'usage')
      and pg_catalog.has_any_column_privilege(relation.oid, 'select')
  );
