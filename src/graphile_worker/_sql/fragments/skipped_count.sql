-- The number of existing jobs that were skipped because they are locked.
(
  select pg_catalog.count(*)
  from existing
  where existing.id <> all (array(select chosen.id from chosen))
    and (existing.is_locked or existing.is_selected)
)
