-- Return all slots that pools $1 rent, when they stop.
update :ext_schema.slots as slots
set pool_id = null,
    rented_at = null
where slots.pool_id = any ($1::text[]);
