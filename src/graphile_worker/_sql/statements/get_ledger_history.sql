-- The levels that were entered in the shared schema, and when.
select id, extract(epoch from ts)::float8, breaking
from :schema.migrations
order by id;
