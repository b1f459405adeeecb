-- Are the indexes there that get_jobs needs? They count only once their building has come to its end.
select count(*) = 3
from pg_index as definition
join pg_class as relation on relation.oid = definition.indexrelid
where relation.relname in ('gwpy_free_jobs', 'gwpy_queued_jobs', 'gwpy_jobs_of_queues')
  and definition.indisvalid
  and definition.indisready
  and relation.relnamespace = (
    select tasks.relnamespace
    from pg_class as tasks
    where tasks.oid = (select known.tableoid from :schema._private_tasks as known limit 1)
  );
