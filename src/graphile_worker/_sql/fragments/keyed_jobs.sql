-- The given jobs, and whether they can be added: $9 is still valid and no name is new.
:given_jobs, keys as materialized (
  select
    given.job_key,
    given.position
  from pg_catalog.unnest($10::text::text[]) with ordinality as given (job_key, position)
), found as materialized (
  select
    coalesce(:is_inspected, false) as is_inspected,
    coalesce(:is_inspected and not pg_catalog.bool_or(spec.is_new), false) as can_add
  from spec
)
