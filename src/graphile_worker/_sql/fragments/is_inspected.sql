-- Whether the functions and the table that add jobs are still those of inspect_adding, which
-- returned $9.
exists (
    select
    from pg_catalog.pg_proc as one
    cross join pg_catalog.pg_proc as many
    cross join pg_catalog.pg_class as relation
    where one.oid = ($9::text::oid[])[1]
      and one.xmin = ($9::text::xid[])[2]
      and many.oid = ($9::text::oid[])[3]
      and many.xmin = ($9::text::xid[])[4]
      and relation.oid = ($9::text::oid[])[5]
      and relation.xmin = ($9::text::xid[])[6]
  )
