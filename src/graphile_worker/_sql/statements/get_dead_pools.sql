-- The pools that were not seen for longer than their lease, if pool $1 was seen just now: otherwise
-- the clock was moved. Not right after a restart of the server, when nobody could be seen. One that
-- was swept comes up again after another lease, until nothing is left of it.
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
