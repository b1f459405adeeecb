-- Return the level of the shared schema, its highest breaking level, and whether level 19 is
-- breaking.
select
  pg_catalog.max(id),
  pg_catalog.max(id) filter (where breaking),
  pg_catalog.bool_or(breaking) filter (where id = 19)
from :schema.migrations;
