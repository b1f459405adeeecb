-- Its run_at is from $1, or $2 microseconds from now, to $3, or $4 microseconds from now.
jobs.run_at between
  coalesce(
    $1::text::timestamptz,
    pg_catalog.now() + $2::bigint::float8 * interval '1 microsecond',
    '-infinity'
  )
  and coalesce(
    $3::text::timestamptz,
    pg_catalog.now() + $4::bigint::float8 * interval '1 microsecond',
    'infinity'
  )
