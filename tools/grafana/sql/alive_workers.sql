select pg_catalog.count(*) as workers
from "${schema}_ext".pools
where swept_at is null
  and seen_at > pg_catalog.now() - lease
  and details ->> 'stopped' is distinct from 'true'
