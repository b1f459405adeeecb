-- If another role installed the schema: run after roles.sql, as a superuser, or as that role once it
-- is a member of queue_owner. Idempotent.
alter schema graphile_worker owner to queue_owner;
alter schema graphile_worker_ext owner to queue_owner;

do $do$
declare
  schemas constant oid[] := array[
    'graphile_worker'::regnamespace,
    'graphile_worker_ext'::regnamespace
  ];
  object text;
begin
  for object in
    select 'table ' || oid::regclass::text
    from pg_catalog.pg_class
    where relnamespace = any (schemas)
      and relkind in ('r', 'p', 'v', 'm')
    union all
    select 'type ' || reltype::regtype::text
    from pg_catalog.pg_class
    where relnamespace = any (schemas)
      and relkind = 'c'
    union all
    select 'type ' || oid::regtype::text
    from pg_catalog.pg_type
    where typnamespace = any (schemas)
      and typtype in ('d', 'e')
    union all
    select 'routine ' || oid::regprocedure::text
    from pg_catalog.pg_proc
    where pronamespace = any (schemas)
  loop
    execute pg_catalog.format('alter %s owner to queue_owner', object);
  end loop;
end;
$do$;
