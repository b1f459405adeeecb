-- Record that the items $1 are known since $2, unless they are known already.
insert into :schema._private_known_crontabs (identifier, known_since)
select identifier, $2::text::timestamptz
from pg_catalog.unnest($1::text[]) as items (identifier)
-- In one order in every session, so that no two deadlock.
order by identifier
on conflict do nothing;
