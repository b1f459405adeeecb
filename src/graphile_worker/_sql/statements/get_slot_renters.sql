-- Return how many slots of each of limits $1 each pool rents.
select slots.limit_name, slots.pool_id, pg_catalog.count(*)::int
from :ext_schema.slots as slots
where slots.limit_name = any ($1::text[])
  and slots.pool_id is not null
group by slots.limit_name, slots.pool_id
order by slots.limit_name, 3 desc, slots.pool_id;
