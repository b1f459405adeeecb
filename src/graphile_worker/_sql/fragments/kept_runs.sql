-- The runs in the JSON array $5, with their times on the clock of the database. Not now(), which is
-- the start of a transaction that a task may have opened long ago.
select
  run.id,
  run.task,
  run.attempt,
  run.has_attempt,
  run.has_result,
  run.result,
  run.has_payload,
  pg_catalog.statement_timestamp() - run.age::float8 * interval '1 microsecond' as started_at,
  pg_catalog.statement_timestamp()
  - (run.age - run.duration)::float8 * interval '1 microsecond' as finished_at,
  pg_catalog.statement_timestamp() + run.keep::float8 * interval '1 microsecond' as expires_at
from pg_catalog.json_to_recordset($5::text::json) as run (
  id bigint,
  task text,
  attempt smallint,
  age bigint,
  duration bigint,
  keep bigint,
  has_attempt boolean,
  has_result boolean,
  has_payload boolean,
  result json
)
