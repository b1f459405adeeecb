-- Rent up to $3 free slots of limit $1 for pool $2, unless it was rescued as dead. Returns the
-- numbers of the slots and of the rentals. Each slot is a row, so nothing is counted that another
-- session may change. Slots that another session rents at this moment are skipped.
--
-- After a limit of 20 was lowered to 5, slots above 5 may still be rented. Then slot s is rented only
-- if at most 5 - s slots above it are. This holds for statements that run at the same time too. Let s
-- be the highest slot that was rented since the change. Up to s, at most s slots are rented. Those
-- above s are older and only become fewer, so they are still at most 5 - s.
with highest as (
  select
    case
      when exists (
        select
        from :ext_schema.slots as slots
        where slots.limit_name = limits.name
          and slots.slot > limits.amount
          and slots.pool_id is not null
      ) then (
        select pg_catalog.max(counted.slot)
        from (
          select
            slots.slot,
            pg_catalog.count(slots.pool_id) over (
              order by slots.slot desc
              rows between unbounded preceding and 1 preceding
            ) as rented_above
          from :ext_schema.slots as slots
          where slots.limit_name = limits.name
        ) as counted
        where counted.slot + counted.rented_above <= limits.amount
      )
      else limits.amount
    end as slot
  from :ext_schema.limits as limits
  where limits.name = $1::text
    and limits.kind = 'concurrency'
), free as (
  select slots.slot
  from :ext_schema.slots as slots
  where slots.limit_name = $1::text
    and slots.pool_id is null
    and slots.slot <= (select highest.slot from highest)
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
