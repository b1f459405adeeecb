-- Return the known crontab items, since when they are known, and the minute of their last job.
select
  identifier,
  extract(epoch from known_since)::text,
  extract(epoch from last_execution)::text
from :schema._private_known_crontabs;
