-- Return limits: the values in force and those of the app, who set them, the rented slots, the
-- starts that are possible now, the seconds until the next one, and whether a pool waits for a slot.
select
  limits.name,
  limits.kind,
  limits.amount,
  (extract(epoch from limits.period) * 1000000::numeric)::bigint,
  limits.burst,
  limits.app_amount,
  (extract(epoch from limits.app_period) * 1000000::numeric)::bigint,
  limits.app_burst,
  limits.set_by,
  extract(epoch from limits.set_at)::text,
  (
    select pg_catalog.count(*)
    from :ext_schema.slots as slots
    where slots.limit_name = limits.name
      and slots.pool_id is not null
  )::int,
  (
    select greatest(
      0,
      -- Not as a difference of times: one of them may be infinite.
      extract(epoch from rates.due_at) - extract(epoch from pg_catalog.now())
      - extract(epoch from limits.period) / limits.amount::numeric * (limits.burst - 1)::numeric
    )::float8
    from :ext_schema.rates as rates
    where rates.limit_name = limits.name
  ),
  coalesce(limits.wanted_at > pg_catalog.now() - interval '15 seconds', false)
from :ext_schema.limits as limits
order by limits.name
limit $1::int;
