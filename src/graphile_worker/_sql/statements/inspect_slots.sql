-- Return each slot of the history in schema $1: an estimate of its outcomes, the bytes of its tables,
-- and whether this role may empty it and may change the ring.
select
  slots.slot,
  case
    -- As the planner estimates it, from the density at the last vacuum and the current size.
    when outcomes.reltuples::float8 > 0::float8 and outcomes.relpages > 0 then
      outcomes.reltuples::float8 / outcomes.relpages::float8
      * pg_catalog.pg_relation_size(outcomes.oid)::float8
      / pg_catalog.current_setting('block_size')::float8
    else pg_catalog.pg_stat_get_live_tuples(outcomes.oid)::float8
  end::bigint,
  pg_catalog.pg_total_relation_size(outcomes.oid)
  + pg_catalog.pg_total_relation_size(attempts.oid),
  pg_catalog.has_table_privilege(outcomes.oid, 'truncate')
  and pg_catalog.has_table_privilege(attempts.oid, 'truncate'),
  pg_catalog.has_table_privilege(history.oid, 'update')
from pg_catalog.generate_series(0, 8) as slots (slot)
join pg_catalog.pg_namespace as schema on schema.nspname = $1::text
join pg_catalog.pg_class as outcomes
  on outcomes.relnamespace = schema.oid
  and outcomes.relname = 'outcomes_' || slots.slot::text
join pg_catalog.pg_class as attempts
  on attempts.relnamespace = schema.oid
  and attempts.relname = 'attempts_' || slots.slot::text
join pg_catalog.pg_class as history
  on history.relnamespace = schema.oid
  and history.relname = 'history'
order by slots.slot;
