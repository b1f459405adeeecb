select count(*) as workers
from "${schema}_ext".pools
where swept_at is null
  and seen_at > now() - lease
  and details ->> 'stopped' is distinct from 'true'
