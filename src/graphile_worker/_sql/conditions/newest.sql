-- It is one of the newest $1 jobs.
jobs.id > coalesce(
  (
    select older.id
    from :schema._private_jobs as older
    order by older.id desc
    offset $1::bigint
    limit 1
  ),
  0
)
