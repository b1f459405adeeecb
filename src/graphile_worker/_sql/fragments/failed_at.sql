-- The time at which a job failed permanently, as far as its row shows: see estimate_failed_at in
-- ops/states.py.
least(
  pg_catalog.now(),
  greatest(
    jobs.updated_at,
    case
      when jobs.run_at > pg_catalog.now()
        then jobs.run_at
          - pg_catalog.exp(least(jobs.attempts, 10::smallint)::float8) * interval '1 second'
      else jobs.run_at
    end
  )
)
