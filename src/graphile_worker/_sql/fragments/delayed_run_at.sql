-- The run_at of a recovered job: at least $2 microseconds from now, where $2 is above 0.
case
  when $2::bigint > 0 then greatest(
    jobs.run_at,
    pg_catalog.now() + $2::bigint::float8 * interval '1 microsecond'
  )
  else jobs.run_at
end
