-- Return the size of the table of jobs of schema $1 with its indexes in bytes, the number of locked
-- named queues, the used share of the notification queue, and that of the most used sequence of ids,
-- null if this role may not read the sequences.
select
  pg_catalog.pg_total_relation_size(relations.oid),
  (
    select pg_catalog.count(*)
    from :schema._private_job_queues as job_queues
    where job_queues.locked_at is not null
  ),
  pg_catalog.pg_notification_queue_usage(),
  (
    -- A sequence without a last value is unused, or may not be read.
    select pg_catalog.max(ids.last_value::float8 / ids.max_value::float8)
    from pg_catalog.pg_sequences as ids
    where ids.schemaname = schemas.nspname
  )
from pg_catalog.pg_class as relations
join pg_catalog.pg_namespace as schemas on schemas.oid = relations.relnamespace
where schemas.nspname = $1::text
  and relations.relname = '_private_jobs';
