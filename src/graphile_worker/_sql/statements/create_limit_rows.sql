-- Create the slots of the concurrency limits $1, and the row of each rate limit.
with created_slots as (
  insert into :ext_schema.slots (limit_name, slot)
  select limits.name, slot.number
  from :ext_schema.limits as limits
  cross join lateral pg_catalog.generate_series(1, limits.amount) as slot (number)
  where limits.name = any ($1::text[])
    and limits.kind = 'concurrency'
    and not exists (
      select
      from :ext_schema.slots as slots
      where slots.limit_name = limits.name
        and slots.slot = slot.number
    )
  order by limits.name, slot.number
  on conflict do nothing
)
insert into :ext_schema.rates (limit_name)
select limits.name
from :ext_schema.limits as limits
where limits.name = any ($1::text[])
  and limits.kind = 'rate'
order by limits.name
on conflict do nothing;
