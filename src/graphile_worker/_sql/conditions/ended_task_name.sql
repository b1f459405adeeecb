-- Its task is $1. With both outcomes, so that the index on tasks finds a range of time.
outcomes.task_identifier = $1::text
  and outcomes.succeeded = any (array[true, false])
