-- Return whether schema $1 has a table of outcomes, whether this role may read outcomes, results,
-- attempts and progress, and whether the jobs of schema $2 are hidden from it. Progress is unlogged, so a standby
-- cannot read it.
select
  coalesce(pg_catalog.bool_or(tables.name = 'outcomes'), false),
  coalesce(pg_catalog.bool_or(tables.name = 'outcomes' and tables.is_readable), false),
  coalesce(pg_catalog.bool_or(tables.name = 'outcomes' and tables.has_readable_results), false),
  coalesce(pg_catalog.bool_or(tables.name = 'attempts' and tables.is_readable), false),
  coalesce(pg_catalog.bool_or(tables.name = 'progress' and tables.is_readable), false)
    and not pg_catalog.pg_is_in_recovery(),
  exists (
    select
    from pg_catalog.pg_class as relations
    join pg_catalog.pg_namespace as schemas on schemas.oid = relations.relnamespace
    where schemas.nspname = $2::text
      and relations.relname = '_private_jobs'
      and :are_rows_hidden
  )
from (
  select
    relations.relname as name,
    pg_catalog.has_schema_privilege(schemas.oid, 'usage')
    and pg_catalog.has_any_column_privilege(relations.oid, 'select') as is_readable,
    case
      when relations.relname = 'outcomes' then
        pg_catalog.has_schema_privilege(schemas.oid, 'usage')
        and pg_catalog.has_column_privilege(relations.oid, 'result', 'select')
    end as has_readable_results
  from pg_catalog.pg_class as relations
  join pg_catalog.pg_namespace as schemas on schemas.oid = relations.relnamespace
  where schemas.nspname = $1::text
    and relations.relname in ('outcomes', 'attempts', 'progress')
    and relations.relkind in ('r', 'p')
) as tables;
