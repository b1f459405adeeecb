select
  id,
  case when swept_at is null and seen_at > pg_catalog.now() - lease then 'alive' else 'dead' end as health,
  details ->> 'host' as host,
  details ->> 'version' as version,
  details ->> 'concurrency' as concurrency,
  extract(epoch from pg_catalog.now() - seen_at)::float8 as heartbeat,
  extract(epoch from lease)::float8 as lease,
  started_at
from "${schema}_ext".pools
where details ->> 'stopped' is distinct from 'true'
order by started_at
