-- Restore $2 unused tokens of rate limit $1, unless tokens were taken since: the next start must still
-- be due at time $3, in seconds since 1970.
update :ext_schema.rates as rates
set due_at = rates.due_at - limits.spacing * $2::int::float8
from (
  select
    pg_catalog.ceil(
      extract(epoch from limits.period) * 1000000::numeric / limits.amount::numeric
    )::float8 * interval '1 microsecond' as spacing
  from :ext_schema.limits as limits
  where limits.name = $1::text
    and limits.kind = 'rate'
) as limits
where rates.limit_name = $1::text
  and extract(epoch from rates.due_at) = $3::text::numeric;
