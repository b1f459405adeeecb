-- Return the indexes of this package that schema $1 has, and whether this role may create them.
select
  exists (
    select
    from pg_catalog.pg_class as jobs
    join pg_catalog.pg_namespace as schema on schema.oid = jobs.relnamespace
    where schema.nspname = $1::text
      and jobs.relname = '_private_jobs'
      and pg_catalog.pg_has_role(jobs.relowner, 'usage')
      and pg_catalog.has_schema_privilege(schema.oid, 'create')
  ),
  exists (
    select
    from pg_catalog.pg_stat_progress_create_index as building
    where building.datname = pg_catalog.current_database()
      and building.pid <> pg_catalog.pg_backend_pid()
  ),
  array(
    select index.relname::text
    from pg_catalog.pg_class as index
    join pg_catalog.pg_namespace as schema on schema.oid = index.relnamespace
    join pg_catalog.pg_index as definition on definition.indexrelid = index.oid
    where schema.nspname = $1::text
      and pg_catalog.starts_with(index.relname::text, 'gwpy_')
      and definition.indisvalid
      and definition.indisready
  ),
  array(
    select index.relname::text
    from pg_catalog.pg_class as index
    join pg_catalog.pg_namespace as schema on schema.oid = index.relnamespace
    join pg_catalog.pg_index as definition on definition.indexrelid = index.oid
    where schema.nspname = $1::text
      and pg_catalog.starts_with(index.relname::text, 'gwpy_')
      and not (definition.indisvalid and definition.indisready)
  );
