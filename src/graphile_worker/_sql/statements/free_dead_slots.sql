-- Free the slots of pools that were rescued as dead, or that are not registered any more: a pool
-- registers before it rents, and returns its slots before it ends.
--
-- By the rental that this statement read. If another session frees a slot first and a pool rents it,
-- PostgreSQL checks the changed row again, but without the table of pools: the new rental would be
-- freed too.
with dead as materialized (
  select slots.limit_name, slots.slot, slots.rental, slots.pool_id
  from :ext_schema.slots as slots
  where slots.pool_id is not null
    and not exists (
      select
      from :ext_schema.pools as pools
      where pools.id = slots.pool_id
        and pools.swept_at is null
    )
), freed as (
  select slots.limit_name, slots.slot
  from :ext_schema.slots as slots
  join dead
    on dead.limit_name = slots.limit_name
    and dead.slot = slots.slot
    and dead.rental = slots.rental
    and dead.pool_id = slots.pool_id
  -- In one order in all statements that free slots: opposite orders would deadlock.
  order by slots.limit_name, slots.slot
  for no key update of slots
)
update :ext_schema.slots as slots
set pool_id = null,
    rented_at = null
from freed
where slots.limit_name = freed.limit_name
  and slots.slot = freed.slot;
