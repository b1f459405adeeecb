-- Whether the functions that add jobs are still those of inspect_adding, which returned $9, and the
-- table has no triggers for INSERT (bit 4). Subqueries take less planning than a join.
(
      select one.xmin
      from pg_catalog.pg_proc as one
      where one.oid = ($9::text::oid[])[1]
    ) = ($9::text::xid[])[2]
    and (
      select many.xmin
      from pg_catalog.pg_proc as many
      where many.oid = ($9::text::oid[])[3]
    ) = ($9::text::xid[])[4]
    and not exists (
      select
      from pg_catalog.pg_trigger as triggers
      where triggers.tgrelid = ($9::text::oid[])[5]
        and triggers.tgtype & 4::smallint <> 0::smallint
    )
