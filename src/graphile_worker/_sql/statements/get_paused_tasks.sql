-- Return the names of the paused tasks, the seconds until the first pause of a task or queue ends,
-- and whether one has ended.
select
  coalesce(
    pg_catalog.array_agg(pauses.name) filter (
      where pauses.kind = 'task' and (pauses.until is null or pauses.until > pg_catalog.now())
    ),
    '{}'
  ),
  extract(
    epoch from pg_catalog.min(pauses.until) filter (where pauses.until > pg_catalog.now())
      - pg_catalog.now()
  )::float8,
  coalesce(pg_catalog.bool_or(pauses.until <= pg_catalog.now()), false)
from :ext_schema.pauses as pauses;
