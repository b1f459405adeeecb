"""The names of the job options, in their order."""

JOB_OPTIONS = [
    "queue_name",
    "run_at",
    "max_attempts",
    "priority",
    "job_key",
    "job_key_mode",
    "flags",
    "shard_key",
    "unique",
    "unique_for",
]
