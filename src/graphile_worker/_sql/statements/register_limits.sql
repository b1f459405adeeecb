-- Write the definitions of limits in the JSON array $1. What a person set stays in force, unless the
-- app changed the kind of the limit.
insert into :ext_schema.limits as limits (
  name,
  kind,
  amount,
  period,
  burst,
  app_amount,
  app_period,
  app_burst
)
select
  given.name,
  given.kind,
  given.amount,
  given.period::float8 * interval '1 microsecond',
  given.burst,
  given.amount,
  given.period::float8 * interval '1 microsecond',
  given.burst
from pg_catalog.json_to_recordset($1::text::json) as given (
  name text,
  kind text,
  amount int,
  period bigint,
  burst int
)
-- In one order, because several workers start at the same time.
order by given.name
on conflict (name) do update
set kind = excluded.kind,
    app_amount = excluded.app_amount,
    app_period = excluded.app_period,
    app_burst = excluded.app_burst,
    amount = case when limits.set_at is not null and limits.kind = excluded.kind then limits.amount else excluded.amount end,
    period = case when limits.set_at is not null and limits.kind = excluded.kind then limits.period else excluded.period end,
    burst = case when limits.set_at is not null and limits.kind = excluded.kind then limits.burst else excluded.burst end,
    set_by = case when limits.set_at is not null and limits.kind = excluded.kind then limits.set_by end,
    set_at = case when limits.set_at is not null and limits.kind = excluded.kind then limits.set_at end
where row(limits.kind, limits.app_amount, limits.app_period, limits.app_burst)
  is distinct from row(excluded.kind, excluded.app_amount, excluded.app_period, excluded.app_burst);
