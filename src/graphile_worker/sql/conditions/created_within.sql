-- It was created from $1, or $2 microseconds after now, to $3, or $4 microseconds after now.
jobs.created_at between
  coalesce($1::text::timestamptz, now() + $2::bigint * interval '1 microsecond', '-infinity')
  and coalesce($3::text::timestamptz, now() + $4::bigint * interval '1 microsecond', 'infinity')
