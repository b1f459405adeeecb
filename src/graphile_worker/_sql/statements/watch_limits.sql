-- Return the kind and the amount in force of limits $1, whether a pool other than $2 waits for a
-- slot, and what the app defines. Only the first pool that asks, and has slots of the limit ($3),
-- learns that one waits.
with wanted as (
  update :ext_schema.limits as limits
  set wanted_at = null
  where limits.name = any ($3::text[])
    and limits.wanted_at > pg_catalog.now() - interval '15 seconds'
    and limits.wanted_by <> all ($2::text[])
  returning limits.name
)
select
  limits.name,
  limits.kind,
  limits.amount,
  exists (select from wanted where wanted.name = limits.name),
  limits.app_amount,
  (extract(epoch from limits.app_period) * 1000000::numeric)::bigint,
  limits.app_burst
from :ext_schema.limits as limits
where limits.name = any ($1::text[]);
