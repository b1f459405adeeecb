-- Return slots: of limits $1, with numbers $2, rentals $3 and pools $4. A slot that was rented again
-- since stays rented. The pool is compared too, because the numbers of rentals restart if a person
-- deletes the limit and a worker registers it again.
with returned as (
  select slots.limit_name, slots.slot
  from :ext_schema.slots as slots
  join rows from (
    pg_catalog.unnest($1::text[]),
    pg_catalog.unnest($2::int[]),
    pg_catalog.unnest($3::bigint[]),
    pg_catalog.unnest($4::text[])
  ) as given (limit_name, slot, rental, pool_id)
    on given.limit_name = slots.limit_name
    and given.slot = slots.slot
    and given.rental = slots.rental
    and given.pool_id = slots.pool_id
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
