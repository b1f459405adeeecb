-- Inspect how schema $1 adds jobs. Returns the text for the last parameter of insert_job and
-- insert_jobs, which changes with the functions; whether this role may call them, they run with its
-- privileges, the table has no triggers for INSERT (bit 4), and arrays can contain nulls; the bodies
-- of the functions; and whether this role may read the ledger.
select
  array[
    one.oid::text,
    one.xmin::text,
    many.oid::text,
    many.xmin::text,
    jobs.oid::text
  ]::text,
  not (one.prosecdef or many.prosecdef)
    and one.proconfig is null
    and many.proconfig is null
    and pg_catalog.current_setting('array_nulls') = 'on'
    and pg_catalog.has_function_privilege(one.oid, 'execute')
    and pg_catalog.has_function_privilege(many.oid, 'execute')
    -- A trigger may change what is inserted, and then the caller must get the changed job.
    and not exists (
      select
      from pg_catalog.pg_trigger as triggers
      where triggers.tgrelid = jobs.oid
        and triggers.tgtype & 4::smallint <> 0::smallint
    ),
  one.prosrc,
  many.prosrc,
  coalesce(
    pg_catalog.has_table_privilege(
      (
        select ledger.oid
        from pg_catalog.pg_class as ledger
        where ledger.relnamespace = schemas.oid
          and ledger.relname = 'migrations'
      ),
      'select'
    ),
    false
  )
from pg_catalog.pg_namespace as schemas
join pg_catalog.pg_proc as one
  on one.pronamespace = schemas.oid
  and one.proname = 'add_job'
join pg_catalog.pg_proc as many
  on many.pronamespace = schemas.oid
  and many.proname = 'add_jobs'
join pg_catalog.pg_class as jobs
  on jobs.relnamespace = schemas.oid
  and jobs.relname = '_private_jobs'
where schemas.nspname = $1::text;
