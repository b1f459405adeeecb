-- Take up to $2 tokens of rate limit $1, at most those of 250 ms, at least one. Returns how many were
-- taken, when the next start is due after them, and the seconds until the next token.
--
-- The row is locked before the clock is read, so that no other session takes a token in between. A
-- start is due an interval after the last one. A burst of n may start n - 1 intervals early.
with locked as (
  select
    rates.due_at,
    limits.burst,
    pg_catalog.ceil(
      extract(epoch from limits.period) * 1000000::numeric / limits.amount::numeric
    )::float8 * interval '1 microsecond' as spacing
  from :ext_schema.rates as rates
  join :ext_schema.limits as limits on limits.name = rates.limit_name
  where rates.limit_name = $1::text
    and limits.kind = 'rate'
  for update of rates
), clock as materialized (
  select locked.due_at, locked.burst, locked.spacing, pg_catalog.clock_timestamp() as time
  from locked
), bucket as (
  select
    clock.time,
    clock.spacing,
    clock.burst,
    -- Never later than the burst allows: the limit may be raised, or the clock of the server set
    -- back. That is written even if no token is taken. Otherwise none could be taken until then.
    clock.due_at > clock.time + clock.spacing * clock.burst::float8 as is_too_late,
    least(
      greatest(clock.due_at, clock.time),
      clock.time + clock.spacing * clock.burst::float8
    ) as due_at
  from clock
), available as (
  select
    bucket.time,
    bucket.spacing,
    bucket.burst,
    bucket.is_too_late,
    bucket.due_at,
    least(
      $2::float8,
      greatest(1, pg_catalog.floor(0.25 / extract(epoch from bucket.spacing))),
      pg_catalog.floor(
        extract(epoch from bucket.time + bucket.spacing * bucket.burst::float8 - bucket.due_at)
        / extract(epoch from bucket.spacing)
      )
    )::int as count
  from bucket
), taken as (
  update :ext_schema.rates as rates
  set due_at = available.due_at + available.spacing * available.count::float8
  from available
  where rates.limit_name = $1::text
    and (available.count > 0 or available.is_too_late)
  returning rates.due_at
)
select
  available.count,
  (select extract(epoch from taken.due_at)::text from taken where available.count > 0),
  greatest(
    0,
    extract(
      epoch from available.due_at + available.spacing * (available.count + 1)::float8
        - available.time - available.spacing * available.burst::float8
    )
  )::float8
from available;
