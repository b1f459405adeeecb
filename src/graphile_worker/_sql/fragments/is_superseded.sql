-- Whether its key was removed or given to another job while a worker had this job locked. Such a
-- job must not run again.
jobs.attempts >= jobs.max_attempts
  and jobs.key is null
  and jobs.updated_at > jobs.created_at
  and jobs.updated_at > jobs.locked_at
