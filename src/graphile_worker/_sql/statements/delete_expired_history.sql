-- Delete at most $2 outcomes in slot $1 that have expired at time $3, or now, and at most as many
-- attempts. Returns their number.
with outcomes as (
  delete from :ext_schema.outcomes as outcomes
  where outcomes.slot = $1::smallint
    and outcomes.ctid = any (
      array(
        select expired.ctid
        from :ext_schema.outcomes as expired
        where expired.slot = $1::smallint
          and expired.expires_at <= coalesce($3::text::timestamptz, pg_catalog.now())
        limit $2::int
      )
    )
  returning outcomes.job_id
), attempts as (
  delete from :ext_schema.attempts as attempts
  where attempts.slot = $1::smallint
    and attempts.ctid = any (
      array(
        select expired.ctid
        from :ext_schema.attempts as expired
        where expired.slot = $1::smallint
          and expired.expires_at <= coalesce($3::text::timestamptz, pg_catalog.now())
        limit $2::int
      )
    )
  returning attempts.job_id
)
select
  (select pg_catalog.count(*) from outcomes) + (select pg_catalog.count(*) from attempts);
