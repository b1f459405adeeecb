-- Return the sessions, transactions, slots and standbys that have kept dead rows of this database
-- from being removed for $1 seconds or longer, oldest first.
select kind, name, state, seconds, transactions
from (
  select
    case backend_type when 'walsender' then 'standby' else 'session' end as kind,
    pg_catalog.concat_ws(', ', pid::text, usename, nullif(application_name, '')) as name,
    state,
    extract(epoch from pg_catalog.clock_timestamp() - xact_start)::bigint as seconds,
    greatest(pg_catalog.age(backend_xmin), pg_catalog.age(backend_xid)) as transactions
  from pg_catalog.pg_stat_activity
  where pid <> pg_catalog.pg_backend_pid()
    -- Neither another vacuum nor sessions of other databases block a vacuum.
    and backend_type <> 'autovacuum worker'
    and (datname = pg_catalog.current_database() or backend_type = 'walsender')
  union all
  select
    'prepared transaction',
    gid,
    null,
    extract(epoch from pg_catalog.clock_timestamp() - prepared)::bigint,
    pg_catalog.age(transaction)
  from pg_catalog.pg_prepared_xacts
  where database = pg_catalog.current_database()
  union all
  select
    'replication slot',
    slot_name::text,
    case when active then 'active' else 'inactive' end,
    null,
    pg_catalog.age(xmin)
  from pg_catalog.pg_replication_slots
) as blockers
-- Slots and standbys have no age: ten thousand transactions behind counts as long.
where transactions is not null
  and (seconds >= $1::int or seconds is null and transactions > 10000)
order by transactions desc;
