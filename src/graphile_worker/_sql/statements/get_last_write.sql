-- Return the time of the last outcome or attempt in slot $1.
select extract(epoch from greatest(
  (
    select pg_catalog.max(outcomes.finished_at)
    from :ext_schema.outcomes as outcomes
    where outcomes.slot = $1::smallint
  ),
  (
    select pg_catalog.max(attempts.started_at + attempts.duration::float8 * interval '1 second')
    from :ext_schema.attempts as attempts
    where attempts.slot = $1::smallint
  )
))::text;
