-- Does schema $1 hold the Rust worker's own registry?
select exists (
  select
  from pg_proc as routine
  join pg_namespace as schema on schema.oid = routine.pronamespace
  where schema.nspname = $1::text
    and routine.proname = 'worker_heartbeat'
    and oidvectortypes(routine.proargtypes) = 'text, json'
);
