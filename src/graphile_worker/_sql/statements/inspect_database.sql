-- Return the server version and the objects of schemas $1 and $2, from the catalog alone.
select
  pg_catalog.current_setting('server_version_num')::int,
  exists (select from pg_catalog.pg_namespace where nspname = $1::text),
  exists (
    select
    from pg_catalog.pg_class as ledger
    join pg_catalog.pg_namespace as schema on schema.oid = ledger.relnamespace
    where schema.nspname = $1::text and ledger.relname = 'migrations'
  ),
  exists (
    select
    from pg_catalog.pg_attribute as breaking
    join pg_catalog.pg_class as ledger on ledger.oid = breaking.attrelid
    join pg_catalog.pg_namespace as schema on schema.oid = ledger.relnamespace
    where schema.nspname = $1::text
      and ledger.relname = 'migrations'
      and breaking.attname = 'breaking'
      and not breaking.attisdropped
  ),
  array(
    select routine.proname::text
    from pg_catalog.pg_proc as routine
    join pg_catalog.pg_namespace as schema on schema.oid = routine.pronamespace
    where schema.nspname = $1::text
  ),
  array(
    select relation.relname::text
    from pg_catalog.pg_class as relation
    join pg_catalog.pg_namespace as schema on schema.oid = relation.relnamespace
    where schema.nspname = $1::text and relation.relkind in ('r', 'p', 'v')
  ),
  exists (select from pg_catalog.pg_namespace where nspname = $2::text),
  exists (
    select
    from pg_catalog.pg_class as ledger
    join pg_catalog.pg_namespace as schema on schema.oid = ledger.relnamespace
    where schema.nspname = $2::text and ledger.relname = 'migrations'
  );
