-- Return the slots that pools $1 rent: limit, number, rental and pool.
select slots.limit_name, slots.slot, slots.rental, slots.pool_id
from :ext_schema.slots as slots
where slots.pool_id = any ($1::text[]);
