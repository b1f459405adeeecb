-- Return whether slot $1 has an outcome or an attempt that ended after $2.
select
  exists (
    select
    from :ext_schema.outcomes as outcomes
    where outcomes.slot = $1::smallint
      and outcomes.finished_at > $2::text::timestamptz
  )
  or exists (
    select
    from :ext_schema.attempts as attempts
    where attempts.slot = $1::smallint
      and attempts.started_at + attempts.duration::float8 * interval '1 second'
      > $2::text::timestamptz
  );
