select
  identifier,
  last_execution as last,
  extract(epoch from pg_catalog.now() - last_execution)::float8 as age,
  known_since
from "${schema}"._private_known_crontabs
order by identifier
