select pg_catalog.count(*) as failed
from "${schema}"._private_jobs
where attempts >= max_attempts
  and locked_at is null
