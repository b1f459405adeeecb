-- Return the described pauses that have not ended. A queue is paused only while its row is locked.
select
  pauses.kind,
  pauses.name,
  pauses.paused_by,
  pauses.reason,
  extract(epoch from pauses.since)::text,
  extract(epoch from pauses.until)::text
from :ext_schema.pauses as pauses
where pauses.kind = 'queue'
  or pauses.until is null
  or pauses.until > pg_catalog.now()
order by pauses.kind, pauses.name;
