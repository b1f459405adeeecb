-- Return the pools whose last heartbeat is older than their lease, if pool $1 sent one recently:
-- otherwise the clock was moved. Returns none right after a restart of the server, when no
-- heartbeat could arrive. A rescued pool is returned again after another lease, until it has no
-- locks left.
select pools.id
from :ext_schema.pools as pools
where pools.seen_at < pg_catalog.now() - pools.lease
  and coalesce(pools.swept_at < pg_catalog.now() - pools.lease, true)
  and pg_catalog.pg_postmaster_start_time() < pg_catalog.now() - pools.lease
  and exists (
    select
    from :ext_schema.pools as own
    where own.id = $1::text
      and own.seen_at > pg_catalog.now() - own.lease / 2::float8
  );
