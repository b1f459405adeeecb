-- Rent up to $3 free slots of limit $1 for pool $2, unless it was rescued as dead. Returns the
-- numbers of the slots and of the rentals. Each slot is a row, so nothing is counted that another
-- session may change. Slots that another session rents at this moment are skipped.
with free as (
  select slots.slot
  from :ext_schema.slots as slots
  where slots.limit_name = $1::text
    and slots.pool_id is null
    and slots.slot <= (
      select limits.amount
      from :ext_schema.limits as limits
      where limits.name = $1::text
        and limits.kind = 'concurrency'
    )
    and exists (
      select
      from :ext_schema.pools as pools
      where pools.id = $2::text
        and pools.swept_at is null
    )
  order by slots.slot
  limit $3::int
  for update of slots skip locked
)
update :ext_schema.slots as slots
set pool_id = $2::text,
    rental = slots.rental + 1,
    rented_at = pg_catalog.now()
from free
where slots.limit_name = $1::text
  and slots.slot = free.slot
returning slots.slot, slots.rental;
