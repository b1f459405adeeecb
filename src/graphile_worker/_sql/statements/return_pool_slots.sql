-- Return all slots that pools $1 rent, when they stop.
with returned as (
  select slots.limit_name, slots.slot
  from :ext_schema.slots as slots
  where slots.pool_id = any ($1::text[])
  -- In one order in all statements that free slots: opposite orders would deadlock.
  order by slots.limit_name, slots.slot
  for no key update of slots
)
update :ext_schema.slots as slots
set pool_id = null,
    rented_at = null
from returned
where slots.limit_name = returned.limit_name
  and slots.slot = returned.slot;
