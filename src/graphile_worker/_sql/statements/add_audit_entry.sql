-- Add an entry to the audit: actor $1, action $2, filter $3, jobs $4, note $6. One entry has up to
-- 1,000 jobs. Without jobs, the count is $5. The optional trigger records changes again.
with entries as (
  insert into :ext_schema.audit (actor, action, filter, job_ids, count, note)
  select
    $1::text,
    $2::text,
    $3::text,
    ($4::bigint[])[first : first + 999],
    case
      when pg_catalog.cardinality($4::bigint[]) = 0 then $5::bigint
      else least(1000, pg_catalog.cardinality($4::bigint[]) - first + 1)
    end,
    $6::text
  from pg_catalog.generate_series(
    1, greatest(1, pg_catalog.cardinality($4::bigint[])), 1000
  ) as first
)
select pg_catalog.set_config('gwpy.audited', '', true);
