-- How far the shared schema is: highest level, highest breaking one, and whose level 19 it has.
select
  max(id),
  max(id) filter (where breaking),
  bool_or(breaking) filter (where id = 19)
from :schema.migrations;
