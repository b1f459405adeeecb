-- Somebody gave its key away, or removed it, while a worker held this job: it must not be revived.
jobs.attempts >= jobs.max_attempts
  and jobs.key is null
  and jobs.updated_at > jobs.created_at
  and jobs.updated_at > jobs.locked_at
