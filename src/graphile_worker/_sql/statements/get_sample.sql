-- Return the sample $1: its age and its duration in seconds, whether the next one is due, and its
-- content. A time far in the future was written before the server's clock was set back.
select
  extract(epoch from pg_catalog.now() - samples.taken_at)::float8,
  samples.duration,
  samples.next_at <= pg_catalog.now()
    or samples.next_at > pg_catalog.now() + interval '2 minutes',
  samples.body::text
from :ext_schema.samples as samples
where samples.name = $1::text;
