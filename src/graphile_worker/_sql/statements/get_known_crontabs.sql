-- All that is known of crontab items: since when, and for which minute each last added a job.
select
  identifier,
  extract(epoch from known_since)::text,
  extract(epoch from last_execution)::text
from :schema._private_known_crontabs;
