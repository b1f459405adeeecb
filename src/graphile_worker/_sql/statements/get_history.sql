-- Return the ring of history slots: the current slot, the starts of all slots, how long and how many
-- outcomes are kept, and the time: $1, or now.
select
  history.slot,
  array(
    select extract(epoch from slot.started_at)::text
    from pg_catalog.unnest(history.started_at) with ordinality as slot (started_at, position)
    order by slot.position
  ),
  extract(epoch from history.keep)::text,
  history.max_rows,
  extract(epoch from coalesce($1::text::timestamptz, pg_catalog.now()))::text
from :ext_schema.history as history
where history.name = 'outcomes';
