-- The parameters of a claim, hidden from the planner: see claim_jobs.
params as materialized (
  select
    least($4::int, 2000) as max_jobs,
    least($4::int, 2000) * 5 / 4 + 20 as enough,
    least($4::int, 2000) / 2 + 30 as few,
    $2::int[] as tasks,
    $3::text[] as flags,
    coalesce($5::text::timestamptz, pg_catalog.now()) as claim_time
)
