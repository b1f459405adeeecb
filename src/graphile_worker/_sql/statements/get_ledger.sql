-- How far the shared schema is: highest level, highest breaking one, and whose level 19 it has.
select
  pg_catalog.max(id),
  pg_catalog.max(id) filter (where breaking),
  pg_catalog.bool_or(breaking) filter (where id = 19)
from :schema.migrations;
