-- Let other pools know that pool $2, which has no slot of limit $1, waits for one. At most one write
-- every 2 seconds.
update :ext_schema.limits as limits
set wanted_by = $2::text,
    wanted_at = pg_catalog.now()
where limits.name = $1::text
  and (
    limits.wanted_at is null
    or limits.wanted_at < pg_catalog.now() - interval '2 seconds'
  );
