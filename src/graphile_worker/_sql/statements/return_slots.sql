-- Return slots: of limits $1, with numbers $2 and rentals $3. A slot that was rented again since stays
-- rented.
update :ext_schema.slots as slots
set pool_id = null,
    rented_at = null
from rows from (
  pg_catalog.unnest($1::text[]),
  pg_catalog.unnest($2::int[]),
  pg_catalog.unnest($3::bigint[])
) as returned (limit_name, slot, rental)
where slots.limit_name = returned.limit_name
  and slots.slot = returned.slot
  and slots.rental = returned.rental
  and slots.pool_id is not null;
