-- How many of the jobs that are there were left to whoever holds them.
(
  select pg_catalog.count(*)
  from there
  where there.id <> all (array(select chosen.id from chosen))
    and (there.is_locked or there.is_meant)
)
